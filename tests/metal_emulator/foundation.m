/* SPDX-License-Identifier: MIT */
#import <Foundation/Foundation.h>

#include <objc/runtime.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local NSAutoreleasePool *innermost;

@interface
NSAutoreleasePool (Adding)
- (void)add:(id)object;
@end

static void *
must_have(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

static NSUInteger *
references(id object)
{
    return object_getIndexedIvars(object);
}

@implementation NSObject
+ (id)alloc
{
    return must_have(class_createInstance(self, sizeof(NSUInteger)));
}

/* The runtime asks this of a root class. */
+ (void)initialize
{
}

- (id)init
{
    return self;
}

- (id)retain
{
    __atomic_add_fetch(references(self), 1, __ATOMIC_RELAXED);
    return self;
}

- (oneway void)release
{
    if (__atomic_fetch_sub(references(self), 1, __ATOMIC_ACQ_REL) == 0)
        [self dealloc];
}

- (id)autorelease
{
    if (!innermost) {
        fprintf(stderr, "autorelease without a pool\n");
        abort();
    }
    [innermost add:self];
    return self;
}

- (void)dealloc
{
    object_dispose(self);
}
@end

@implementation NSAutoreleasePool
- (id)init
{
    outer = innermost;
    innermost = self;
    return self;
}

- (void)add:(id)object
{
    if (n == capacity) {
        capacity = capacity ? 2 * capacity : 16;
        objects = must_have(realloc(objects, capacity * sizeof *objects));
    }
    objects[n++] = object;
}

- (void)drain
{
    [self release];
}

- (void)dealloc
{
    for (NSUInteger i = 0; i < n; i++)
        [objects[i] release];
    free(objects);
    innermost = outer;
    [super dealloc];
}
@end

/* ---- strings --------------------------------------------------------------------------------- */

@interface HeapString : NSString {
    char *text;
}
- (instancetype)initWithText:(char *)taken;
@end

@implementation HeapString
- (instancetype)initWithText:(char *)taken
{
    text = taken;
    return self;
}

- (const char *)UTF8String
{
    return text;
}

- (void)dealloc
{
    free(text);
    [super dealloc];
}
@end

@implementation NSString
+ (instancetype)stringWithUTF8String:(const char *)from
{
    char *copy = must_have(malloc(strlen(from) + 1));
    memcpy(copy, from, strlen(from) + 1);
    return [[[HeapString alloc] initWithText:copy] autorelease];
}

+ (instancetype)stringWithFormat:(NSString *)format, ...
{
    va_list ap, again;
    va_start(ap, format);
    va_copy(again, ap);
    int bytes = vsnprintf(NULL, 0, [format UTF8String], ap) + 1;
    char *made = must_have(malloc((size_t)bytes));
    vsnprintf(made, (size_t)bytes, [format UTF8String], again);
    va_end(again);
    va_end(ap);
    return [[[HeapString alloc] initWithText:made] autorelease];
}

- (const char *)UTF8String
{
    return "";
}
@end

/* A literal is static and never freed. */
@implementation NSConstantString
- (id)retain
{
    return self;
}

- (oneway void)release
{
}

- (const char *)UTF8String
{
    return text;
}
@end

/* ---- the rest -------------------------------------------------------------------------------- */

@implementation NSError
- (instancetype)initWithDescription:(NSString *)text
{
    description = [text retain];
    return self;
}

- (NSString *)localizedDescription
{
    return description;
}

- (void)dealloc
{
    [description release];
    [super dealloc];
}
@end

@implementation NSArray
- (instancetype)initWithObjects:(const id *)from count:(NSUInteger)count
{
    objects = must_have(calloc(count + 1, sizeof *objects));
    for (n = 0; n < count; n++)
        objects[n] = [from[n] retain];
    return self;
}

- (NSUInteger)count
{
    return n;
}

- (id)objectAtIndex:(NSUInteger)i
{
    return objects[i];
}

- (void)dealloc
{
    for (NSUInteger i = 0; i < n; i++)
        [objects[i] release];
    free(objects);
    [super dealloc];
}
@end
