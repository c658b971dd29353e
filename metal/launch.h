/* SPDX-License-Identifier: MIT */
/*
 * A launch describes how an operation is run: the kernel, what it is compiled for, and the grid.
 * Launches are pure functions of the operation, in C; device.m and work.m carry them out.
 */
#pragma once

#include "arguments.h"
#include "error.h"
#include "engine/op.h"

/* GEMMs with at most this many rows run on a separate kernel, which sums in a different order. */
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
    bool is_attention;           /* it can be cut into pieces */
    double flops;                /* upper bound of the FLOPs; 0: qv_op_flops() */
    double seconds;              /* rough upper bound of the time on a slow GPU (batch.c) */
};
_Static_assert(sizeof((struct launch_metal *)0)->args <= 4096, "setBytes takes no more");

/* Returns one way to run an operation; plans use choice 0. QV_EUNSUPPORTED beyond the last choice,
 * and for sizes beyond 32 bits. naive: use the simple kernel for any size. *out must be zeroed
 * before. metal/launch.c does this for all kinds. */
qv_status qv_launch_metal(const struct qv_op *op, int choice, bool naive, struct launch_metal *out,
                          qv_error *err);

/*
 * metal/batch.c: macOS kills a command buffer that runs for seconds. So a list is cut into several
 * buffers, and a step that alone would run too long is cut into pieces, each a separate dispatch.
 * Pieces are whole heads of attention, or blocks of queries of one head; cutting does not change
 * their bits.
 */

/* Estimates the time of an operation on a slow GPU. simple: by a simple kernel. */
double qv_launch_seconds_metal(const struct qv_op *op, double flops, bool simple);
/* Returns the number of pieces of a launch; the second function returns one of them. */
uint32_t qv_launch_pieces_metal(const struct launch_metal *launch);
void qv_launch_piece_metal(const struct launch_metal *launch, uint32_t index,
                           struct launch_metal *out);
/* What a command buffer holds so far. */
struct batch_metal {
    uint32_t dispatches;
    double seconds;
};
/* Adds a dispatch to a command buffer, or returns false if it needs a new one. */
bool qv_batch_add_metal(struct batch_metal *batch, double seconds);

/* Rejects numbers that are too large for the kernels. */
struct count_metal {
    const char *field;
    int64_t value;
};
qv_status qv_check_counts_metal(const char *op, const struct count_metal *counts, size_t n,
                                qv_error *err);
#define CHECK_COUNTS(op, err, ...)                                                                 \
    qv_check_counts_metal(op, (const struct count_metal[]){ __VA_ARGS__ },                         \
                          sizeof((const struct count_metal[]){ __VA_ARGS__ }) /                    \
                              sizeof(struct count_metal),                                          \
                          err)

/* Writes the kernel's name and, if it is a simple kernel, the reason. naive: as in
 * qv_launch_metal. */
void qv_describe_metal(const struct launch_metal *launch, bool naive, char *text, size_t size);

/* The launch of one kind of operation: metal/launch_gemm.c, launch_conv.c, launch_attention.c, and
 * launch_rows.c for the rest, which are bound by memory. Linking fails if an operation has none. */
#define QV_OP(name, fields, operands, flops)                                                       \
    qv_status qv_launch_##name##_metal(const struct qv_op_##name *op, int choice, bool naive,      \
                                       struct launch_metal *out, qv_error *err);
#include "engine/ops.inc"
