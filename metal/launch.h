/* SPDX-License-Identifier: MIT */
/*
 * How an operation is run: which kernel, compiled for what, over which grid. Pure functions of the
 * operation and of the GPU, in C; device.m and work.m do what they say.
 */
#ifndef QV_METAL_LAUNCH_H
#define QV_METAL_LAUNCH_H

#include "arguments.h"
#include "error.h"
#include "engine/op.h"

/* gemms of no more rows run on a kernel of their own, whose sums are in another order. */
enum { MOST_FEW_ROWS = 16 };

/* A kernel finds its arguments at buffer(0) and operand i at buffer(1 + i). Its threads lie along
 * x; threadgroup memory is threadgroup(0). */
struct launch_metal {
    const char *function;
    const char *obstacle; /* why it is a simple kernel, where a fast one could be; NULL */
    qv_dtype real;        /* which library: what REAL stands for in it */
    uint32_t constants[CONSTANTS];
    union {
        struct patchify_args patchify;
        struct convert_args convert;
        struct gemm_args gemm;
        struct norm_args norm;
        struct rope_args rope;
        struct attention_args attention;
        struct gate_args gate;
        struct gather_args gather;
        struct interpolate_args interpolate;
        struct im2col_args im2col;
        struct conv_args conv;
        struct epilogue_op_args epilogue_op;
    } args;
    uint32_t groups[3], threads; /* threadgroups; threads of each, a multiple of 32 */
    uint32_t threadgroup_bytes;  /* at most 32 KiB */
};

/* The choice'th way to run an operation, best guess first; QV_EUNSUPPORTED, in words, beyond the
 * last, and for sizes beyond 32 bits. naive: on the kernel that is simple, whatever the size.
 * *out is zero before. metal/launch.c: by kind. */
qv_status qv_launch_metal(const struct qv_op *op, int choice, bool naive, struct launch_metal *out,
                          qv_error *err);

/* The kernel's name, and where it is a simple one, why; naive: as in qv_launch_metal. */
void qv_describe_metal(const struct launch_metal *launch, bool naive, char *text, size_t size);

/* The same of one kind: metal/launch_gemm.c, launch_conv.c, launch_attention.c, launch_rows.c (all that
 * are bound by memory). launch.c lists them, so that an operation without a launch does not link. */
#define QV_OP(name, fields, operands, flops)                                                       \
    qv_status qv_launch_##name##_metal(const struct qv_op_##name *op, int choice, bool naive,      \
                                       struct launch_metal *out, qv_error *err);
#include "engine/ops.inc"

#endif
