/* SPDX-License-Identifier: MIT */
/* A Conv3d's description (qwenvit_conv3d.h): pure functions of it. */
#ifndef QV_CONV3D_DESCRIPTION_H
#define QV_CONV3D_DESCRIPTION_H

#include "qwenvit_conv3d.h"

extern const char *const qv_conv3d_axis_names[3];
extern const char *const qv_conv3d_causal_names[QV_CAUSAL_COUNT];

static inline int64_t
qv_conv3d_kernel_volume(const qv_conv3d_desc *d)
{
    return d->kernel[0] * d->kernel[1] * d->kernel[2];
}

int qv_lowering_find(const char *name); /* -1: no such */

/* The description with every zero that means a default replaced by it. */
qv_conv3d_desc qv_conv3d_defaults(const qv_conv3d_desc *desc, qv_dtype dtype);

/* The output sizes d', h', w' of a checked description; and its rows, n*d'*h'*w'. */
void qv_conv3d_output(const qv_conv3d_desc *desc, int64_t out[3]);
int64_t qv_conv3d_rows(const qv_conv3d_desc *desc);

/* Whether x lies in memory as the matrix [n*d'*h'*w', c*kd*kh*kw]: so do patch rows, volumes of
 * one kernel each, and voxels where the kernel is one. */
bool qv_conv3d_input_is_rows(const qv_conv3d_desc *desc);

/* ---- text.c: descriptions as lines of text --------------------------------------------------- */

/* "n=1 d=21 h=60 ... kernel=3,3,3 ... dtype=bf16", fields that are default left out; the key of the
 * tune file and the line of a shapes file. Always terminated; returns text. */
const char *qv_conv3d_print(const qv_conv3d_desc *desc, char *text, size_t size);
/* Reads what qv_conv3d_print writes; fields left out are defaults. QV_EINVAL naming the word
 * that is wrong. */
qv_status qv_conv3d_parse(const char *text, qv_conv3d_desc *out, qv_error *err);

#endif
