/* SPDX-License-Identifier: MIT */
/* The definition of a Conv3d, with which every way to run it is compared. */
#ifndef QV_CONV3D_DEFINITION_H
#define QV_CONV3D_DEFINITION_H

#include "description.h"

/* The tensors that a Conv3d reads. */
struct qv_conv3d_tensors {
    const void *x;        /* as the description says (dtype or bytes) */
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

#endif
