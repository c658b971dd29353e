/* SPDX-License-Identifier: MIT */
/* The little of Foundation that the Metal backend uses, over the GNU Objective-C runtime. */
#ifndef QV_EMULATED_FOUNDATION_H
#define QV_EMULATED_FOUNDATION_H

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
    Class isa; /* behind an object lies how many references it has beyond the first */
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
+ (instancetype)stringWithFormat:(NSString *)format, ...; /* conversions of C alone */
- (const char *)UTF8String;
@end

@interface NSConstantString : NSString { /* laid out by the compiler */
    const char *text;
    unsigned length;
}
@end

@interface NSError : NSObject {
    NSString *description;
}
- (instancetype)initWithDescription:(NSString *)text; /* ours alone */
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

#endif
