/* SPDX-License-Identifier: MIT */
#include "cudnn_graph.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"

/* The number of configurations to request from a heuristic: for f32 it lists about 30 that compute
 * in TF32 before the first allowed one. */
enum { MOST_CONFIGURATIONS = 64, MOST_NOTES = 32 };

/* ---- the graph --------------------------------------------------------------------------------*/

/* Records a failure with cuDNN's own message, which is more specific than a status. Reading clears
 * it. */
static void
note_failure(struct sketch_cuda *sketch, cudnnStatus_t status, const char *call)
{
    char message[200] = "";
    cudnnGetLastErrorString(message, sizeof message);
    message[sizeof message - 1] = 0;
    sketch->status = status;
    snprintf(sketch->message, sizeof sketch->message, "%s: %s%s%s", call,
             cudnnGetErrorString(status), *message ? ": " : "", message);
}

static bool
succeeded(struct sketch_cuda *sketch, cudnnStatus_t status, const char *call)
{
    if (status && !sketch->status)
        note_failure(sketch, status, call);
    return !sketch->status;
}

/* Makes a finalised descriptor. *call: the call that failed, or else the last one. Even after a
 * failure *out must be destroyed, unless it is NULL. */
static cudnnStatus_t
make(cudnnBackendDescriptorType_t type, const struct attribute_cuda *attributes, int n,
     cudnnBackendDescriptor_t *out, const char **call)
{
    *call = "cudnnBackendCreateDescriptor";
    cudnnStatus_t s = cudnnBackendCreateDescriptor(type, out);
    for (const struct attribute_cuda *a = attributes; a < attributes + n && !s; a++) {
        *call = "cudnnBackendSetAttribute";
        s = cudnnBackendSetAttribute(*out, a->name, a->type, a->count, a->values);
    }
    if (!s) {
        *call = "cudnnBackendFinalize";
        s = cudnnBackendFinalize(*out);
    }
    return s;
}

/* Adds a word to an FNV-1a digest. */
static uint64_t
fold(uint64_t digest, int64_t word)
{
    for (size_t i = 0; i < sizeof word; i++)
        digest = (digest ^ (uint8_t)(word >> 8 * i)) * 0x100000001b3u;
    return digest;
}

static int64_t
place_of(const struct sketch_cuda *sketch, cudnnBackendDescriptor_t descriptor)
{
    int i = 0;
    while (i < sketch->n && sketch->descriptors[i] != descriptor)
        i++;
    return i;
}

/* Returns a value as a number that is stable across processes. */
static int64_t
number_of(const struct sketch_cuda *sketch, const struct attribute_cuda *a, int64_t i)
{
    switch (a->type) {
    case CUDNN_TYPE_INT64: return ((const int64_t *)a->values)[i];
    case CUDNN_TYPE_BOOLEAN: return ((const bool *)a->values)[i];
    case CUDNN_TYPE_DOUBLE: {
        int64_t bits;
        memcpy(&bits, (const double *)a->values + i, sizeof bits);
        return bits;
    }
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return place_of(sketch, ((const cudnnBackendDescriptor_t *)a->values)[i]);
    case CUDNN_TYPE_HANDLE: return 0;
    default: return ((const int *)a->values)[i]; /* an enumeration */
    }
}

static void
fold_attributes(struct sketch_cuda *sketch, cudnnBackendDescriptorType_t type,
                const struct attribute_cuda *attributes, int n)
{
    uint64_t digest = fold(sketch->digest, type);
    for (const struct attribute_cuda *a = attributes; a < attributes + n; a++) {
        digest = fold(fold(digest, a->name), a->count);
        for (int64_t i = 0; i < a->count; i++)
            digest = fold(digest, number_of(sketch, a, i));
    }
    sketch->digest = digest;
}

cudnnBackendDescriptor_t
qv_describe_cuda(struct sketch_cuda *sketch, cudnnBackendDescriptorType_t type,
                 const struct attribute_cuda *attributes, int n)
{
    cudnnBackendDescriptor_t out = NULL;
    const char *call;
    if (sketch->status)
        return NULL;
    if (sketch->n == SKETCH_MOST) {
        succeeded(sketch, CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "a sketch's descriptors");
        return NULL;
    }
    fold_attributes(sketch, type, attributes, n);
    const cudnnStatus_t s = make(type, attributes, n, &out, &call);
    sketch->descriptors[sketch->n++] = out;
    return succeeded(sketch, s, call) ? out : NULL;
}

void
qv_operation_cuda(struct sketch_cuda *sketch, cudnnBackendDescriptorType_t type,
                  const struct attribute_cuda *attributes, int n)
{
    cudnnBackendDescriptor_t operation = qv_describe_cuda(sketch, type, attributes, n);
    if (sketch->n_operations == SKETCH_MOST_OPERATIONS)
        succeeded(sketch, CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "a sketch's operations");
    else if (operation)
        sketch->operations[sketch->n_operations++] = operation;
}

/* Values are f32 or bf16, as prepare refuses other dtypes; lists are i32. */
static cudnnDataType_t
cudnn_type(int64_t dtype)
{
    return dtype == QV_F32   ? CUDNN_DATA_FLOAT
           : dtype == QV_I32 ? CUDNN_DATA_INT32
                             : CUDNN_DATA_BFLOAT16;
}

cudnnBackendDescriptor_t
qv_describe_tensor_cuda(struct sketch_cuda *sketch, const struct tensor_cuda *tensor)
{
    const cudnnDataType_t type = cudnn_type(tensor->dtype);
    const int64_t alignment = tensor->alignment ? tensor->alignment : TENSOR_ALIGNMENT;
    const struct attribute_cuda attributes[] = {
        { CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &tensor->id },
        { CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type },
        { CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, tensor->n, tensor->dims },
        { CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, tensor->n, tensor->strides },
        { CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment },
        { CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &tensor->is_virtual },
        { CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &tensor->by_value },
        { CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
          &tensor->offsets },
    };
    return qv_describe_cuda(sketch, CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes,
                            COUNT_OF(attributes) - !tensor->offsets);
}

void
qv_pointwise_cuda(struct sketch_cuda *sketch, cudnnPointwiseMode_t mode, double beta,
                  cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                  cudnnBackendDescriptor_t y)
{
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    const struct attribute_cuda how[] = {
        { CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode },
        { CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision },
        { CUDNN_ATTR_POINTWISE_SWISH_BETA, CUDNN_TYPE_DOUBLE, 1, &beta },
    };
    const cudnnBackendDescriptor_t pointwise =
        qv_describe_cuda(sketch, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, how,
                         COUNT_OF(how) - (mode != CUDNN_POINTWISE_SWISH_FWD));
    const struct attribute_cuda what[] = {
        { CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
          &pointwise },
        { CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x },
        { CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y },
        { CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &b },
    };
    qv_operation_cuda(sketch, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what,
                      COUNT_OF(what) - !b);
}

static void
destroy_all(cudnnBackendDescriptor_t *descriptors, int n)
{
    while (n-- > 0)
        if (descriptors[n])
            cudnnBackendDestroyDescriptor(descriptors[n]);
}

void
qv_sketch_close_cuda(struct sketch_cuda *sketch)
{
    destroy_all(sketch->descriptors, sketch->n);
    *sketch = (struct sketch_cuda){ 0 };
}

/* ---- configurations ---------------------------------------------------------------------------*/

/* Engines rejected by their notes and the operands' dtype: sums must be in f32 over products that
 * are exact in f32, and runs must be reproducible bit for bit. */
enum { ALWAYS, F32, STRICT_F32 };
static const struct {
    cudnnBackendNumericalNote_t note;
    int refused_for;
} refused[] = {
    { CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, ALWAYS },
    { CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, ALWAYS },
    { CUDNN_NUMERICAL_NOTE_FFT, ALWAYS },
    { CUDNN_NUMERICAL_NOTE_WINOGRAD, ALWAYS },
    { CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, F32 },
    { CUDNN_NUMERICAL_NOTE_TENSOR_CORE, STRICT_F32 },
};

static bool
suits(cudnnBackendNumericalNote_t note, int64_t dtype, bool tf32)
{
    const bool applies[] = {
        [ALWAYS] = true, [F32] = dtype == QV_F32, [STRICT_F32] = dtype == QV_F32 && !tf32
    };
    for (int i = 0; i < COUNT_OF(refused); i++)
        if (refused[i].note == note && applies[refused[i].refused_for])
            return false;
    return true;
}

/* Reads up to `most` descriptors of a type. *n: their number. The caller must destroy `most`, even
 * after a failure. */
static cudnnStatus_t
read_descriptors(cudnnBackendDescriptor_t from, cudnnBackendAttributeName_t name,
                 cudnnBackendDescriptorType_t type, int most, int64_t *n,
                 cudnnBackendDescriptor_t *out)
{
    cudnnStatus_t s = CUDNN_STATUS_SUCCESS;
    for (int i = 0; i < most && !s; i++)
        s = cudnnBackendCreateDescriptor(type, &out[i]);
    if (!s)
        s = cudnnBackendGetAttribute(from, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, n, out);
    *n = s ? 0 : *n < most ? *n : most;
    return s;
}

/* Returns whether a configuration may be used; if its notes cannot be read, it may not. *index is
 * the engine's number. */
static bool
configuration_suits(cudnnBackendDescriptor_t configuration, int64_t dtype, bool tf32,
                    int64_t *index)
{
    cudnnBackendNumericalNote_t notes[MOST_NOTES];
    cudnnBackendDescriptor_t engine = NULL;
    int64_t n = 0;
    cudnnStatus_t s = read_descriptors(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                       CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1, &n, &engine);
    if (!s) /* used in descriptions only */
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n,
                                 index);
    if (!s)
        s = cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                     CUDNN_TYPE_NUMERICAL_NOTE, MOST_NOTES, &n, notes);
    destroy_all(&engine, 1);
    bool all = !s && n <= MOST_NOTES;
    for (int64_t i = 0; all && i < n; i++)
        all = suits(notes[i], dtype, tf32);
    return all;
}

/* A heuristic's answer, best first; the caller destroys all of them. */
struct configurations {
    cudnnBackendDescriptor_t all[MOST_CONFIGURATIONS];
    int64_t n;
};

/* Queries a heuristic. One that fails has nothing for this graph; the sketch has the reason. */
static void
find_configurations(struct sketch_cuda *sketch, const struct target_cuda *target,
                    cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                    struct configurations *out)
{
    const cudnnBackendDescriptor_t properties = target->properties;
    const struct attribute_cuda attributes[] = {
        { CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph },
        { CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode },
        { CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties },
    };
    cudnnBackendDescriptor_t heuristic = NULL;
    const char *call;
    *out = (struct configurations){ 0 };
    cudnnStatus_t s = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, attributes,
                           COUNT_OF(attributes) - !properties, &heuristic, &call);
    if (!s) {
        call = "a heuristic's results";
        s = read_descriptors(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                             CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, MOST_CONFIGURATIONS, &out->n,
                             out->all);
    }
    if (s)
        note_failure(sketch, s, call);
    destroy_all(&heuristic, 1);
}

/* ---- the plan ---------------------------------------------------------------------------------*/

static cudnnStatus_t
make_plan(const struct attribute_cuda *attributes, int n, struct graph_cuda *out)
{
    int64_t bytes = 0, one;
    const char *call;
    *out = (struct graph_cuda){ 0 };
    cudnnStatus_t s =
        make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, attributes, n, &out->plan, &call);
    if (!s)
        s = cudnnBackendGetAttribute(out->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                     CUDNN_TYPE_INT64, 1, &one, &bytes);
    out->workspace_bytes = (size_t)bytes;
    return s;
}

static cudnnStatus_t
plan_of(const struct target_cuda *target, cudnnBackendDescriptor_t configuration,
        struct graph_cuda *out)
{
    const struct attribute_cuda attributes[] = {
        { CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
          &configuration },
        { CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
          &target->properties },
    };
    return make_plan(attributes, COUNT_OF(attributes) - !target->properties, out);
}

/* Tries the configurations of one mode in turn. */
static bool
take_plan(struct sketch_cuda *sketch, const struct target_cuda *target,
          cudnnBackendDescriptor_t graph, int64_t dtype, cudnnBackendHeurMode_t mode,
          struct graph_cuda *out)
{
    struct configurations found;
    bool taken = false;
    find_configurations(sketch, target, graph, mode, &found);
    for (int64_t i = 0; i < found.n && !taken; i++) {
        int64_t engine = -1;
        if (!configuration_suits(found.all[i], dtype, target->tf32, &engine)) {
            snprintf(sketch->message, sizeof sketch->message,
                     "some are inexact or not deterministic");
            continue;
        }
        cudnnStatus_t s = plan_of(target, found.all[i], out);
        out->engine = engine;
        out->last_resort = mode == CUDNN_HEUR_MODE_FALLBACK;
        if (s)
            note_failure(sketch, s, "an execution plan");
        taken = !s || (target->excuses && target->excuses(target->user, s, sketch->message));
        if (!taken)
            qv_graph_close_cuda(out);
    }
    destroy_all(found.all, MOST_CONFIGURATIONS);
    return taken;
}

static cudnnBackendDescriptor_t
describe_graph(struct sketch_cuda *sketch, const struct target_cuda *target)
{
    /* without the handle, heuristics for an open device return no configurations */
    const cudnnHandle_t handle = target->dev ? target->dev->cudnn : NULL;
    const struct attribute_cuda attributes[] = {
        { CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, sketch->n_operations,
          sketch->operations },
        { CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle },
    };
    return qv_describe_cuda(sketch, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, attributes,
                            COUNT_OF(attributes) - !handle);
}

/* Running out of memory does not mean that cuDNN lacks support for the graph. */
static bool
is_lack_of_memory(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
           status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

/* ---- plans kept in files --------------------------------------------------------------------- */

/* The header of a kept plan, which is cuDNN's JSON including compiled machine code. */
struct kept {
    int64_t engine, last_resort;
};

/* Loads a plan from its file. A plan written by another version of cuDNN may be rejected, and is
 * then made again. */
static bool
take_kept(const struct target_cuda *target, const char *key, struct graph_cuda *out)
{
    const struct qv_plan_cache *plan_cache = target->dev ? target->dev->plan_cache : NULL;
    struct kept head;
    size_t bytes = 0;
    char *kept = plan_cache ? plan_cache->find(plan_cache->files, key, &bytes) : NULL;
    bool taken = kept && bytes > sizeof head;
    if (taken) {
        const struct attribute_cuda attributes[] = {
            { CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target->dev->cudnn },
            { CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
              (int64_t)(bytes - sizeof head), kept + sizeof head },
        };
        memcpy(&head, kept, sizeof head);
        taken = !make_plan(attributes, COUNT_OF(attributes), out);
        if (!taken)
            qv_graph_close_cuda(out);
        out->engine = head.engine;
        out->last_resort = head.last_resort;
    }
    free(kept);
    return taken;
}

static void
keep(const struct target_cuda *target, const char *key, const struct graph_cuda *graph)
{
    const struct qv_plan_cache *plan_cache = target->dev ? target->dev->plan_cache : NULL;
    const struct kept head = { graph->engine, graph->last_resort };
    int64_t n = 0;
    if (!plan_cache ||
        cudnnBackendGetAttribute(graph->plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                 CUDNN_TYPE_CHAR, 0, &n, NULL) ||
        n <= 0)
        return;
    char *kept = malloc(sizeof head + (size_t)n);
    if (kept &&
        !cudnnBackendGetAttribute(graph->plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                  CUDNN_TYPE_CHAR, n, &n, kept + sizeof head)) {
        memcpy(kept, &head, sizeof head);
        plan_cache->keep(plan_cache->files, key, kept, sizeof head + (size_t)n);
    }
    free(kept);
}

qv_status
qv_graph_open_cuda(struct sketch_cuda *sketch, const struct target_cuda *target, int64_t dtype,
                   struct graph_cuda *out, qv_error *err)
{
    /* the second mode lists slow engines that always work */
    static const cudnnBackendHeurMode_t modes[] = { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK };
    char key[80]; /* of the values that determine a graph's configuration */
    snprintf(key, sizeof key, "cuDNN graph %016llx of %s%s", (unsigned long long)sketch->digest,
             qv_dtype_name((qv_dtype)dtype), target->tf32 ? " with TF32" : "");
    *out = (struct graph_cuda){ 0 };
    bool taken = false;
    if (!sketch->status && take_kept(target, key, out))
        return QV_OK;
    const cudnnBackendDescriptor_t graph = describe_graph(sketch, target);
    if (graph) /* from here on the sketch has the last failure instead of the first */
        snprintf(sketch->message, sizeof sketch->message, "its heuristics suggest none");
    for (int i = 0; i < COUNT_OF(modes) && graph && !taken; i++)
        taken = take_plan(sketch, target, graph, dtype, modes[i], out);
    if (taken) {
        keep(target, key, out);
        return QV_OK;
    }
    return qv_fail(err, is_lack_of_memory(sketch->status) ? QV_ENOMEM : QV_EUNSUPPORTED,
                   "cuDNN has no usable configuration: %s", sketch->message);
}

void
qv_graph_close_cuda(struct graph_cuda *graph)
{
    if (graph->plan)
        cudnnBackendDestroyDescriptor(graph->plan);
    *graph = (struct graph_cuda){ 0 };
}

size_t
qv_graph_describe_cuda(const struct graph_cuda *graph, const char *why, char *text, size_t size)
{
    int n = graph->plan ? snprintf(text, size, "cuDNN engine %lld%s", (long long)graph->engine,
                                   graph->last_resort ? " (the last resort of its heuristics)" : "")
                        : snprintf(text, size, "naive kernel: %s", why);
    return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}

/* ---- running ----------------------------------------------------------------------------------*/

qv_status
qv_graph_run_cuda(struct qv_device_cuda *dev, const struct graph_cuda *graph,
                  const struct binding_cuda *bindings, int n, void *workspace, qv_error *err)
{
    int64_t ids[GRAPH_MOST_BINDINGS];
    const void *pointers[GRAPH_MOST_BINDINGS];
    cudnnBackendDescriptor_t pack = NULL;
    for (int i = 0; i < n; i++) {
        const struct binding_cuda *b = &bindings[i];
        /* cuDNN does not check this: its kernels silently read wrong values */
        if (b->alignment && (uintptr_t)b->p % (uintptr_t)b->alignment)
            return qv_fail(err, QV_EBACKEND, "%s at %p is not aligned to %lld bytes for cuDNN",
                           b->name, b->p, (long long)b->alignment);
        ids[i] = b->id;
        pointers[i] = b->p;
    }
    const struct attribute_cuda attributes[] = {
        { CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids },
        { CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers },
        { CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace },
    };
    const char *call;
    cudnnStatus_t s =
        make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, attributes, COUNT_OF(attributes), &pack, &call);
    if (!s) {
        call = "cudnnBackendExecute";
        s = cudnnBackendExecute(dev->cudnn, graph->plan, pack);
    }
    const qv_status status = qv_check_cudnn(dev, s, call, err);
    destroy_all(&pack, 1);
    return status;
}
