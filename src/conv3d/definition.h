/* SPDX-License-Identifier: MIT */
/* What a Conv3d is: the yardstick of every way to run it. */
#ifndef QV_CONV3D_DEFINITION_H
#define QV_CONV3D_DEFINITION_H

#include "description.h"

/*
 * The convolution by its definition: seven loops, sums in double, nothing rounded. x as the
 * description says (dtype or bytes); weight[o, c/groups, kd, kh, kw] and residual in the
 * description's dtype, to which bias is rounded; bias and residual NULL where there is none;
 * y[count, o] in double: rows [first, first+count) of n*d'*h'*w'. Depth padding as a first call has
 * it. QV_ENOMEM.
 */
qv_status qv_conv3d_define(const qv_conv3d_desc *desc, const void *x, const void *weight,
                           const float *bias, const void *residual, int64_t first, int64_t count,
                           double *y, qv_error *err);

#endif
