/* SPDX-License-Identifier: MIT */
/* Compiles kernels from the source in the library, once per process, and keeps them until it
 * exits. */
#include "metal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "grow.h"
#include "metal_source.h" /* metal_source[]: the joined source, which ends in 0 */

struct entry {
    id<MTLDevice> gpu;
    const char *function; /* NULL: the entry is the compiled library itself */
    qv_dtype real;
    uint32_t constants[CONSTANTS];
    id object;
};

static struct {
    pthread_mutex_t lock;
    struct entry *entries;
    size_t n, capacity;
} cache = { PTHREAD_MUTEX_INITIALIZER, NULL, 0, 0 };

static id
find(const struct entry *wanted)
{
    for (size_t i = 0; i < cache.n; i++) {
        const struct entry *e = &cache.entries[i];
        bool same_name = !e->function == !wanted->function &&
                         (!e->function || !strcmp(e->function, wanted->function));
        if (e->gpu == wanted->gpu && e->real == wanted->real && same_name &&
            !memcmp(e->constants, wanted->constants, sizeof e->constants))
            return e->object;
    }
    return nil;
}

/* Takes ownership of the object. If there is no memory to record it, it is released. */
static id
keep(const struct entry *entry)
{
    struct entry *grown = qv_grown(cache.entries, cache.n, &cache.capacity, sizeof *grown);
    if (!grown) {
        [entry->object release];
        return nil;
    }
    cache.entries = grown;
    [entry->gpu retain]; /* while it is retained, no other GPU gets its address */
    cache.entries[cache.n++] = *entry;
    return entry->object;
}

static qv_status
fail_with(qv_error *err, const char *what, const char *name, NSError *error)
{
    const char *words = error ? [[error localizedDescription] UTF8String] : "no reason given";
    return qv_fail(err, QV_EBACKEND, "%s %s: Metal reported \"%.300s\"", what, name, words);
}

/* Returns what REAL is in the kernels' source. prepare refuses all dtypes but these two. */
static const char *
real_name(qv_dtype dtype)
{
    switch (dtype) {
    case QV_F32: return "float";
    case QV_BF16: return "bfloat";
    case QV_F16:
    case QV_U8:
    case QV_I32:
    case QV_DTYPE_AUTO:
    case QV_DTYPE_MAX: break;
    }
    return "no such dtype"; /* a name that does not compile */
}

/* Compiles without fast math: NaN must stay NaN, and exp must be accurate to the last places. */
static qv_status
compile(const struct entry *wanted, id<MTLLibrary> *out, qv_error *err)
{
    struct entry e = { .gpu = wanted->gpu, .real = wanted->real };
    const char *real = real_name(e.real);
    *out = find(&e);
    if (*out)
        return QV_OK;
    NSError *error = nil;
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    [options setFastMathEnabled:NO];
    [options setLanguageVersion:MTLLanguageVersion3_1];
    NSString *source = [NSString stringWithFormat:@"#define REAL %s\n%s", real, metal_source];
    e.object = [e.gpu newLibraryWithSource:source options:options error:&error];
    [options release];
    if (!e.object)
        return fail_with(err, "compiling the kernels for", real, error);
    *out = keep(&e);
    return *out ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory to remember a library");
}

static qv_status
specialise(struct entry *e, id<MTLLibrary> library, qv_error *err)
{
    NSError *error = nil;
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    for (NSUInteger i = 0; i < CONSTANTS; i++)
        [values setConstantValue:&e->constants[i] type:MTLDataTypeUInt atIndex:i];
    id<MTLFunction> function =
        [library newFunctionWithName:[NSString stringWithUTF8String:e->function]
                      constantValues:values
                               error:&error];
    [values release];
    if (!function)
        return fail_with(err, "kernel", e->function, error);
    e->object = [e->gpu newComputePipelineStateWithFunction:function error:&error];
    [function release];
    return e->object ? QV_OK : fail_with(err, "kernel", e->function, error);
}

static qv_status
find_or_make(struct entry *e, id<MTLComputePipelineState> *out, qv_error *err)
{
    id<MTLLibrary> library = nil;
    *out = find(e);
    if (*out)
        return QV_OK;
    qv_status status = compile(e, &library, err);
    if (!status)
        status = specialise(e, library, err);
    if (status)
        return status;
    *out = keep(e);
    return *out ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory to remember a kernel");
}

qv_status
qv_pipeline_metal(struct qv_device_metal *dev, const struct launch_metal *launch,
                  id<MTLComputePipelineState> *out, qv_error *err)
{
    struct entry e = { .gpu = dev->gpu, .function = launch->function, .real = launch->real };
    memcpy(e.constants, launch->constants, sizeof e.constants);
    qv_status status;
    pthread_mutex_lock(&cache.lock);
    @autoreleasepool {
        status = find_or_make(&e, out, err);
    }
    pthread_mutex_unlock(&cache.lock);
    if (status)
        return status;
    NSUInteger most = [*out maxTotalThreadsPerThreadgroup];
    if (most < launch->threads)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "kernel %s: %u threads per group, but %s supports at most %d",
                       launch->function, launch->threads, dev->name, (int)most);
    return QV_OK;
}
