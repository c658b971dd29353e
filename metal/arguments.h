/* SPDX-License-Identifier: MIT */
/*
 * What the host passes to a kernel: function constants, for which a pipeline is compiled, and one
 * struct of arguments at buffer(0). buffer(1 + i) is operand i of the operation, in the order of
 * ops.inc. Both the host's C and the kernels include this file. Counts are 32-bit and strides
 * 64-bit; both are in elements.
 */
#ifndef QV_METAL_ARGUMENTS_H
#define QV_METAL_ARGUMENTS_H

#ifdef __METAL_VERSION__
typedef unsigned int qv_count; /* metal_stdlib, which defines uint, is included later */
typedef long qv_stride;
#else
#include <stdint.h>
typedef uint32_t qv_count;
typedef int64_t qv_stride;
#endif

/* Function constants, all uint. Every pipeline gets all of them. */
enum {
    CONSTANT_BIAS,     /* 1: there is a bias */
    CONSTANT_ACT,      /* enum qv_act: 0 none, 1 tanh, 2 erf GELU, 3 SiLU, 4 quick GELU */
    CONSTANT_RESIDUAL, /* 1: there is a residual */
    CONSTANT_ALIGNED,  /* 1: rows are whole vectors; for tiles: k is whole steps */
    CONSTANT_A,        /* A to D: each kernel documents its own */
    CONSTANT_B,
    CONSTANT_C,
    CONSTANT_D,
    /* how a weight is quantised; 0: it is not. Otherwise the sum of: bits; 256 times the group
     * size; 65536 times the kind of factors (0: f32, 1: f16, 2: bf16) */
    CONSTANT_GROUPED,
    CONSTANTS
};

/* y[i,j] = act(alpha * sum + bias[j]) + residual[i % residual_rows, j]. */
struct epilogue_args {
    float alpha;
    qv_count residual_rows; /* 0: no residual */
};

struct patchify_args {
    qv_count rows, patch, frames, channels; /* frames: in a patch row */
};

struct convert_args {
    qv_stride n;
};

struct gemm_args {
    qv_count m, n, k;
    struct epilogue_args epilogue;
};

struct norm_args {
    qv_count rows, cols;
    float eps;
};

struct rope_args {
    qv_count rows, heads, head_dim;
    qv_stride stride; /* between rows */
};

struct attention_args {
    /* segment_rows 0: the list defines the segments */
    qv_count segments, segment_rows, heads, head_dim;
    qv_count first_block, first_head; /* of the grid, which may be a piece of the whole */
    float scale;
    qv_stride q_stride, k_stride, v_stride; /* between rows */
};

struct gate_args {
    qv_count rows, cols;
    qv_stride a_stride, b_stride; /* between rows */
};

struct gather_args {
    qv_count rows, cols;
};

struct interpolate_args {
    qv_count rows, cols, taps;
};

/* Axes are depth, height and width. taps are the kernel's. */
struct im2col_args {
    qv_count n, in[3], c, taps[3], stride[3], out[3];
};

/* x[n, x_depth (the first in[0] are read), in[1], in[2], c], w[o, taps, c/groups], y[n, out, o]. */
struct conv_args {
    qv_count n, in[3], c, o, taps[3], stride[3], dilation[3], out[3], x_depth, groups;
    qv_count top, left; /* zeros before the image; the zeros after it follow from out */
    struct epilogue_args epilogue;
};

struct epilogue_op_args {
    qv_count rows, cols;
    struct epilogue_args epilogue;
};

#endif
