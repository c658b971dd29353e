/* SPDX-License-Identifier: MIT */
/* Pure functions of a Conv3d's description (qwenvit_conv3d.h). */
#pragma once

#include "qwenvit_conv3d.h"

extern const char *const qv_conv3d_axis_names[3];
extern const char *const qv_conv3d_causal_names[QV_CAUSAL_COUNT];

static inline int64_t
qv_conv3d_kernel_volume(const qv_conv3d_desc *d)
{
    return d->kernel[0] * d->kernel[1] * d->kernel[2];
}

int qv_lowering_find(const char *name); /* -1: unknown */

/* Returns the description with every zero that means a default replaced by the default. */
qv_conv3d_desc qv_conv3d_defaults(const qv_conv3d_desc *desc, qv_dtype dtype);

/* Return the output sizes d', h', w' of a checked description, and its rows, n*d'*h'*w'. */
void qv_conv3d_output(const qv_conv3d_desc *desc, int64_t out[3]);
int64_t qv_conv3d_rows(const qv_conv3d_desc *desc);

/* Returns whether x lies in memory as the matrix [n*d'*h'*w', c*kd*kh*kw]: patch rows do, volumes
 * of one kernel each, and voxels if the kernel is 1x1x1. */
bool qv_conv3d_input_is_rows(const qv_conv3d_desc *desc);

/* ---- text.c: descriptions as lines of text --------------------------------------------------- */

extern const char *const qv_conv3d_layout_names[]; /* by qv_conv3d_layout; the last is NULL */

/* Prints "n=1 d=21 h=60 ... kernel=3,3,3 ... dtype=bf16" without the fields that have their
 * default; this is a line of a shapes file. The text is always terminated, and returned. */
const char *qv_conv3d_print(const qv_conv3d_desc *desc, char *text, size_t size);
/* Parses what qv_conv3d_print writes; fields left out get their defaults. Returns QV_EINVAL naming
 * the word that is wrong. */
qv_status qv_conv3d_parse(const char *text, qv_conv3d_desc *out, qv_error *err);

/* ---- definition.c: the definition, with which every way to run it is compared ---------------- */

/* The tensors that a Conv3d reads. */
struct qv_conv3d_tensors {
    const void *x;        /* as in the description (dtype or bytes) */
    const void *weight;   /* [o, c/groups, kd, kh, kw] in the description's dtype */
    const float *bias;    /* [o], rounded to that dtype; NULL: there is none */
    const void *residual; /* [residual_rows, o] in that dtype; NULL: there is none */
};

/*
 * Computes the convolution by its definition: seven loops, sums in double, nothing rounded.
 * y[count, o] in double holds rows [first, first+count) of n*d'*h'*w'. Depth is padded as in the
 * first call of a stream. Returns QV_ENOMEM.
 */
qv_status qv_conv3d_define(const qv_conv3d_desc *desc, const struct qv_conv3d_tensors *in,
                           int64_t first, int64_t count, double *y, qv_error *err);
