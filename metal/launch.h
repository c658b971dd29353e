/* SPDX-License-Identifier: MIT */
/*
 * A launch says how an operation is run: the kernel, what it is compiled for, and the grid.
 * Launches are pure functions of the operation and of the GPU, in C; device.m and work.m carry them
 * out.
 */
#ifndef QV_METAL_LAUNCH_H
#define QV_METAL_LAUNCH_H

#include "arguments.h"
#include "error.h"
#include "engine/op.h"

/* GEMMs with at most so many rows run on a kernel of their own, which sums in another order. */
enum { MOST_FEW_ROWS = 16 };

/* A kernel finds its arguments at buffer(0), operand i at buffer(1 + i), and threadgroup memory
 * at threadgroup(0). Its threads lie along x. */
struct launch_metal {
    const char *function;
    const char *obstacle; /* why a simple kernel is used although a faster one exists; else NULL */
    qv_dtype real;        /* what REAL stands for in the library to use */
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
    uint32_t groups[3], threads; /* threadgroups, and threads of each, a multiple of 32 */
    uint32_t threadgroup_bytes;  /* at most 32 KiB */
};

/* Gives one way to run an operation: choice 0 is the best guess. QV_EUNSUPPORTED beyond the last
 * choice, and for sizes beyond 32 bits. naive: use the simple kernel, whatever the size. *out
 * must be zero before. metal/launch.c does this for all kinds. */
qv_status qv_launch_metal(const struct qv_op *op, int choice, bool naive, struct launch_metal *out,
                          qv_error *err);

/* Writes the kernel's name and, if it is a simple one, why. naive: as in qv_launch_metal. */
void qv_describe_metal(const struct launch_metal *launch, bool naive, char *text, size_t size);

/* The launch of one kind of operation: metal/launch_gemm.c, launch_conv.c, launch_attention.c,
 * and launch_rows.c for all that are bound by memory. It does not link if an operation lacks
 * one. */
#define QV_OP(name, fields, operands, flops)                                                       \
    qv_status qv_launch_##name##_metal(const struct qv_op_##name *op, int choice, bool naive,      \
                                       struct launch_metal *out, qv_error *err);
#include "engine/ops.inc"

#endif
