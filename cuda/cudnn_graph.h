/* SPDX-License-Identifier: MIT */
/*
 * cuDNN's graph API from C. A sketch collects descriptors and remembers the first call that failed,
 * so that building a graph does not need a check on every line; qv_graph_open_cuda() makes a plan
 * from it.
 */
#pragma once

#include "cuda.h"

/* The target of plans: an open device, or the properties of an absent device. */
struct target_cuda {
    struct qv_device_cuda *dev;          /* NULL if properties are set */
    cudnnBackendDescriptor_t properties; /* a DEVICEPROP; NULL: those of dev */
    bool tf32;                           /* TF32 is allowed for f32 */
    /* For checks without a GPU: called for every configuration that does not become a plan; if it
     * returns true, the configuration counts as a plan. NULL: none does. */
    bool (*excuses)(void *user, cudnnStatus_t status, const char *message);
    void *user;
};

/* ---- the graph --------------------------------------------------------------------------------*/

enum { SKETCH_MOST = 24, SKETCH_MOST_OPERATIONS = 6 };
struct sketch_cuda {
    int n, n_operations;
    cudnnBackendDescriptor_t descriptors[SKETCH_MOST]; /* all of them */
    cudnnBackendDescriptor_t operations[SKETCH_MOST_OPERATIONS];
    uint64_t digest; /* digest of all values set, the key of kept plans */
    /* Status of the first failed call; later calls do nothing. qv_graph_open_cuda replaces it by
     * the last failure of its search. */
    cudnnStatus_t status;
    char message[300]; /* the call that failed, and why */
};
void qv_sketch_close_cuda(struct sketch_cuda *sketch); /* plans stay valid */

struct attribute_cuda {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;
};

/* Returns a finalised descriptor, which the sketch owns; NULL if it failed. */
cudnnBackendDescriptor_t qv_describe_cuda(struct sketch_cuda *sketch,
                                          cudnnBackendDescriptorType_t type,
                                          const struct attribute_cuda *attributes, int n);
/* Adds a descriptor that is an operation of the graph. */
void qv_operation_cuda(struct sketch_cuda *sketch, cudnnBackendDescriptorType_t type,
                       const struct attribute_cuda *attributes, int n);

enum { TENSOR_ALIGNMENT = 16, TENSOR_MOST_DIMS = 5 };
struct tensor_cuda {
    int64_t id; /* its number in bindings */
    int64_t dtype;
    int n;
    int64_t dims[TENSOR_MOST_DIMS], strides[TENSOR_MOST_DIMS];
    int64_t alignment;                /* alignment of its address, in bytes; 0: TENSOR_ALIGNMENT */
    cudnnBackendDescriptor_t offsets; /* i32, in elements: where each of dims[0] begins and the last
                                       * ends; NULL: evenly spaced */
    bool is_virtual;                  /* a value between two operations, which is not in memory */
    bool by_value;                    /* a number on the host, bound when the graph runs */
};
cudnnBackendDescriptor_t qv_describe_tensor_cuda(struct sketch_cuda *sketch,
                                                 const struct tensor_cuda *tensor);

/* Adds y = mode(x, b) in f32; b is NULL for an activation, beta is swish's: x / (1 + exp(-beta
 * x)). */
void qv_pointwise_cuda(struct sketch_cuda *sketch, cudnnPointwiseMode_t mode, double beta,
                       cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                       cudnnBackendDescriptor_t y);

/* ---- the plan ---------------------------------------------------------------------------------*/

/* Makes a plan from the first configuration that suits operands of this dtype and can be finalised;
 * uses an earlier process's plan if the device's plan_cache has it. Returns QV_EUNSUPPORTED if
 * there is none. */
qv_status qv_graph_open_cuda(struct sketch_cuda *sketch, const struct target_cuda *target,
                             int64_t dtype, struct graph_cuda *out, qv_error *err);
void qv_graph_close_cuda(struct graph_cuda *graph);
/* Writes "cuDNN engine 8" or, if there is no plan, that the naive kernel runs and why. Returns the
 * text's length. */
size_t qv_graph_describe_cuda(const struct graph_cuda *graph, const char *why, char *text,
                              size_t size);

/* The address of a tensor; alignment 0: a value, given by the address of a float on the host. */
struct binding_cuda {
    int64_t id;
    const char *name;
    const void *p;
    int64_t alignment;
};
enum { GRAPH_MOST_BINDINGS = 8 };
qv_status qv_graph_run_cuda(struct qv_device_cuda *dev, const struct graph_cuda *graph,
                            const struct binding_cuda *bindings, int n, void *workspace,
                            qv_error *err);

/* ---- plans of operations, for any target ----------------------------------------------------- */

/* These make the plans that prepare uses. They return QV_EUNSUPPORTED if cuDNN has none. */
qv_status qv_attention_plan_cuda(const struct target_cuda *target, const struct qv_op_attention *op,
                                 struct graph_cuda *out, qv_error *err);
qv_status qv_gemm_plan_cuda(const struct target_cuda *target, const struct qv_op_gemm *op,
                            struct graph_cuda *out, qv_error *err);
qv_status qv_conv_plan_cuda(const struct target_cuda *target, const struct qv_op_conv *op,
                            struct conv_cuda *out, qv_error *err);

/* Runs a GEMM's plan; p has the addresses of a gemm operation. */
qv_status qv_gemm_graph_run_cuda(struct qv_device_cuda *dev, const struct qv_op_gemm *op,
                                 const struct graph_cuda *graph, void *const *p, void *workspace,
                                 qv_error *err);
