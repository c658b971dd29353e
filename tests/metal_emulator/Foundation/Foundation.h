/* SPDX-License-Identifier: MIT */
/* The small part of Foundation that the Metal backend uses, on top of the GNU Objective-C
 * runtime. */
#pragma once

#include <objc/objc.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long NSUInteger;
typedef long NSInteger;

@protocol NSObject
- (id)retain;
- (oneway void)release;
- (id)autorelease;
@end

__attribute__((objc_root_class))
@interface NSObject<NSObject> {
    Class isa; /* Behind an object lies the number of its references beyond the first. */
}
+ (id)alloc;
- (id)init;
- (void)dealloc;
@end

@interface NSAutoreleasePool : NSObject {
    id *objects;
    NSUInteger n, capacity;
    NSAutoreleasePool *outer;
}
- (void)drain;
@end

@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char *)text;
+ (instancetype)stringWithFormat:(NSString *)format, ...; /* Only the conversions of C. */
- (const char *)UTF8String;
@end

@interface NSConstantString : NSString { /* The compiler lays this out. */
    const char *text;
    unsigned length;
}
@end

@interface NSError : NSObject {
    NSString *description;
}
- (instancetype)initWithDescription:(NSString *)text; /* Apple's class does not have this. */
- (NSString *)localizedDescription;
@end

@interface NSArray<Element> : NSObject {
    id *objects;
    NSUInteger n;
}
- (instancetype)initWithObjects:(const id *)from count:(NSUInteger)count;
- (NSUInteger)count;
- (Element)objectAtIndex:(NSUInteger)i;
@end
