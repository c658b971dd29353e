/* SPDX-License-Identifier: MIT */
/* What a description may be, and which lowerings may compute it: pure functions. */
#ifndef QV_CONV3D_LEGAL_H
#define QV_CONV3D_LEGAL_H

#include "description.h"
#include "engine/backend.h"

/* What is asked about, and room for the words of a no. */
struct qv_conv3d_question {
    const qv_conv3d_desc *desc;
    const struct qv_caps *caps;
    char *text;
    size_t size;
};

/* False, and why. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool
qv_conv3d_forbid(const struct qv_conv3d_question *q, const char *format, ...);

/* QV_EINVAL naming field and value: sizes not positive, products beyond int64, a kernel larger
 * than its padded input, groups that do not divide, a layout that the geometry does not allow.
 * Takes, as all here, a description without defaults to fill in. */
qv_status qv_conv3d_check(const qv_conv3d_desc *desc, qv_error *err);

/* Whether a lowering computes this convolution; text[size] says what it comes down to, or the first
 * thing that forbids it with its values. */
bool qv_conv3d_legal(const qv_conv3d_desc *desc, const struct qv_caps *caps, qv_lowering lowering,
                     char *text, size_t size);

#endif
