/* SPDX-License-Identifier: MIT */
/*
 * A Metal device that runs kernels through emulator.h. The work of a command buffer is done when
 * somebody waits for it, not when it is committed, so that forgetting to wait is noticed.
 */
#import <Metal/Metal.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "emulator.h"

enum { MOST_BUFFER_GB = 16 };

long emulator_calls_left = -1;

/* Tells whether this call is the one that has to fail. */
static BOOL
fails(void)
{
    return emulator_calls_left >= 0 && emulator_calls_left-- == 0;
}

static double
now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void
give_error(NSError **error, NSString *text)
{
    if (error)
        *error = [[[NSError alloc] initWithDescription:text] autorelease];
}

/* ---- memory ---------------------------------------------------------------------------------- */

@interface EmulatedBuffer : NSObject <MTLBuffer> {
  @public
    char *bytes;
    NSUInteger length;
    BOOL owned;
}
@end

@implementation EmulatedBuffer
- (void *)contents
{
    return bytes;
}

- (NSUInteger)length
{
    return length;
}

- (void)dealloc
{
    if (owned)
        free(bytes);
    [super dealloc];
}
@end

/* ---- kernels --------------------------------------------------------------------------------- */

@implementation MTLCompileOptions
- (void)setFastMathEnabled:(BOOL)enabled
{
    (void)enabled;
}

- (void)setLanguageVersion:(MTLLanguageVersion)version
{
    (void)version;
}
@end

@implementation MTLFunctionConstantValues
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index
{
    if (type != MTLDataTypeUInt || index >= 32) {
        fprintf(stderr, "function constant %lu: type %lu is not emulated\n", index, type);
        abort();
    }
    memcpy(&values[index], value, sizeof values[index]);
    set[index] = YES;
}
@end

@interface EmulatedFunction : NSObject <MTLFunction, MTLComputePipelineState> {
  @public
    const struct emulator_kernel *kernel;
    MTLFunctionConstantValues *constants;
}
@end

@implementation EmulatedFunction
- (NSUInteger)maxTotalThreadsPerThreadgroup
{
    return 1024;
}

- (NSUInteger)threadExecutionWidth
{
    return 32;
}

- (void)dealloc
{
    [constants release];
    [super dealloc];
}
@end

@interface EmulatedLibrary : NSObject <MTLLibrary> {
  @public
    char name[16];
}
@end

@implementation EmulatedLibrary
- (id<MTLFunction>)newFunctionWithName:(NSString *)function
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error
{
    const struct emulator_kernel *kernel =
        fails() ? NULL : emulator_find(name, [function UTF8String]);
    if (!kernel) {
        give_error(error, [NSString stringWithFormat:@"no kernel %s in the library of %s",
                                                     [function UTF8String], name]);
        return nil;
    }
    EmulatedFunction *made = [[EmulatedFunction alloc] init];
    made->kernel = kernel;
    made->constants = [[MTLFunctionConstantValues alloc] init];
    memcpy(made->constants->values, values->values, sizeof values->values);
    memcpy(made->constants->set, values->set, sizeof values->set);
    return made;
}
@end

/* ---- work ------------------------------------------------------------------------------------ */

/* A dispatch, with copies of the bytes from setBytes and the buffers that it holds. */
struct step {
    struct emulator_dispatch dispatch;
    id held[EMULATOR_BUFFERS];
};

@interface EmulatedCommands : NSObject <MTLCommandBuffer, MTLComputeCommandEncoder> {
    struct step *steps;
    NSUInteger n, capacity;
    struct step next;
    MTLCommandBufferStatus status;
    NSError *error;
    double start_s, end_s;
}
- (void)runAll;
@end

/* Work is done in the order in which it was committed. */
static struct {
    pthread_mutex_t lock;
    EmulatedCommands *committed[64];
    NSUInteger n;
} work = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void
run_oldest(void)
{
    EmulatedCommands *oldest = work.committed[0];
    [oldest runAll];
    work.n--;
    memmove(work.committed, work.committed + 1, work.n * sizeof *work.committed);
    [oldest release];
}

@implementation EmulatedCommands
- (id<MTLComputeCommandEncoder>)computeCommandEncoder
{
    return fails() ? nil : self;
}

- (void)setComputePipelineState:(id<MTLComputePipelineState>)state
{
    EmulatedFunction *function = (EmulatedFunction *)state;
    next.dispatch.kernel = function->kernel;
    for (int i = 0; i < EMULATOR_CONSTANTS; i++) {
        next.dispatch.constants[i] = function->constants->values[i];
        next.dispatch.has_constant[i] = function->constants->set[i];
    }
}

- (void)hold:(id)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index
{
    EmulatedBuffer *b = buffer;
    [b retain];
    [next.held[index] release];
    next.held[index] = b;
    next.dispatch.buffers[index] =
        (struct emulator_buffer){ b ? b->bytes : NULL, b ? b->length : 0, offset, false };
}

- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index
{
    EmulatedBuffer *copy = [[EmulatedBuffer alloc] init];
    copy->bytes = malloc(length);
    copy->length = length;
    copy->owned = YES;
    memcpy(copy->bytes, bytes, length);
    [self hold:copy offset:0 atIndex:index];
    next.dispatch.buffers[index].is_set = true;
    [copy release];
}

- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index
{
    [self hold:buffer offset:offset atIndex:index];
}

- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index
{
    (void)index;
    next.dispatch.threadgroup_bytes = length;
}

- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads
{
    const NSUInteger g[3] = { groups.width, groups.height, groups.depth };
    const NSUInteger t[3] = { threads.width, threads.height, threads.depth };
    if (n == capacity) {
        capacity = capacity ? 2 * capacity : 16;
        steps = realloc(steps, capacity * sizeof *steps);
        if (!steps)
            abort();
    }
    for (int i = 0; i < 3; i++) {
        next.dispatch.groups[i] = (uint32_t)g[i];
        next.dispatch.threads[i] = (uint32_t)t[i];
    }
    for (int i = 0; i < EMULATOR_BUFFERS; i++)
        [next.held[i] retain];
    steps[n++] = next;
}

- (void)endEncoding
{
}

/* When many command buffers wait, the oldest is run: a real queue would not stand still either. */
- (void)commit
{
    status = MTLCommandBufferStatusCommitted;
    pthread_mutex_lock(&work.lock);
    if (work.n == sizeof work.committed / sizeof *work.committed)
        run_oldest();
    work.committed[work.n++] = [self retain];
    pthread_mutex_unlock(&work.lock);
}

- (void)runAll
{
    char text[600] = "the GPU gave up";
    struct emulator_commands commands = { 0 };
    start_s = now_s();
    status = MTLCommandBufferStatusCompleted;
    for (NSUInteger i = 0; i < n && status == MTLCommandBufferStatusCompleted; i++)
        if ((i == 0 && fails()) ||
            !emulator_run_in(&commands, &steps[i].dispatch, text, sizeof text)) {
            status = MTLCommandBufferStatusError;
            error = [[NSError alloc] initWithDescription:[NSString stringWithUTF8String:text]];
        }
    end_s = now_s();
}

- (void)waitUntilCompleted
{
    pthread_mutex_lock(&work.lock);
    while (status == MTLCommandBufferStatusCommitted)
        run_oldest();
    pthread_mutex_unlock(&work.lock);
}

- (MTLCommandBufferStatus)status
{
    return status;
}

- (NSError *)error
{
    return error;
}

- (double)GPUStartTime
{
    return start_s;
}

- (double)GPUEndTime
{
    return end_s;
}

- (void)dealloc
{
    for (NSUInteger i = 0; i < n; i++)
        for (int j = 0; j < EMULATOR_BUFFERS; j++)
            [steps[i].held[j] release];
    for (int j = 0; j < EMULATOR_BUFFERS; j++)
        [next.held[j] release];
    free(steps);
    [error release];
    [super dealloc];
}
@end

@interface EmulatedQueue : NSObject <MTLCommandQueue>
@end

@implementation EmulatedQueue
- (id<MTLCommandBuffer>)commandBuffer
{
    return fails() ? nil : [[[EmulatedCommands alloc] init] autorelease];
}
@end

/* ---- the device ------------------------------------------------------------------------------ */

@interface EmulatedDevice : NSObject <MTLDevice>
@end

@implementation EmulatedDevice
- (NSString *)name
{
    return @"Emulated Apple GPU";
}

/* QV_EMULATED_FAMILY=7 stands for an M1 whose system is older than Metal 3 and therefore has no
 * bfloat. */
- (BOOL)supportsFamily:(MTLGPUFamily)family
{
    const char *oldest = getenv("QV_EMULATED_FAMILY");
    return family == MTLGPUFamilyMetal3 ? !oldest : family <= MTLGPUFamilyApple7;
}

- (NSUInteger)maxBufferLength
{
    return (NSUInteger)MOST_BUFFER_GB << 30;
}

/* A small GPU, so that chunks are short. */
- (uint64_t)recommendedMaxWorkingSetSize
{
    return 512 << 20;
}

- (id<MTLCommandQueue>)newCommandQueue
{
    return fails() ? nil : [[EmulatedQueue alloc] init];
}

- (EmulatedBuffer *)buffer:(void *)bytes length:(NSUInteger)length owned:(BOOL)owned
{
    if (!bytes)
        return nil;
    EmulatedBuffer *buffer = [[EmulatedBuffer alloc] init];
    buffer->bytes = bytes;
    buffer->length = length;
    buffer->owned = owned;
    return buffer;
}

/* Metal does not promise what a new buffer holds, so it is not zero here. */
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options
{
    void *bytes = NULL;
    NSUInteger page = (NSUInteger)sysconf(_SC_PAGESIZE);
    (void)options;
    if (fails() || posix_memalign(&bytes, page, length))
        return nil;
    memset(bytes, 0xee, length < page ? length : page);
    return [self buffer:bytes length:length owned:YES];
}

- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)bytes
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *bytes, NSUInteger length))deallocator
{
    NSUInteger page = (NSUInteger)sysconf(_SC_PAGESIZE);
    (void)options;
    (void)deallocator;
    if (fails() || (uintptr_t)bytes % page || length % page)
        return nil;
    return [self buffer:bytes length:length owned:NO];
}

/* The kernels are compiled in. The first line of the source says which ones are meant. */
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source
                               options:(MTLCompileOptions *)options
                                 error:(NSError **)error
{
    EmulatedLibrary *library = [[EmulatedLibrary alloc] init];
    (void)options;
    if (!fails() && sscanf([source UTF8String], "#define REAL %15s", library->name) == 1)
        return library;
    [library release];
    give_error(error, @"the source does not begin with #define REAL");
    return nil;
}

- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(NSError **)error
{
    if (!fails())
        return [(EmulatedFunction *)function retain];
    give_error(error, @"no pipeline");
    return nil;
}
@end

NSArray<id<MTLDevice>> *
MTLCopyAllDevices(void)
{
    static EmulatedDevice *device;
    if (!device)
        device = [[EmulatedDevice alloc] init];
    id all[] = { device };
    return [[NSArray alloc] initWithObjects:all count:1];
}
