/* SPDX-License-Identifier: MIT */
/* Checks which descriptions are valid, and which lowerings may compute them: pure functions. */
#pragma once

#include "description.h"
#include "engine/backend.h"

/* What guards check, with room for the reason of a rejection. */
struct qv_conv3d_question {
    const qv_conv3d_desc *desc;
    const struct qv_caps *caps;
    qv_lowering lowering;
    char *text;
    size_t size;
};

/* Writes the reason why something is forbidden, and returns false. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool
qv_conv3d_forbid(const struct qv_conv3d_question *q, const char *format, ...);

/* Returns QV_EINVAL naming field and value for sizes that are not positive, products beyond int64,
 * a kernel larger than its padded input, groups that do not divide, or a layout that the geometry
 * does not allow. Like all functions here, it expects a description with all defaults filled in. */
qv_status qv_conv3d_check(const qv_conv3d_desc *desc, qv_error *err);

/* Returns whether a lowering computes this convolution; text[size] describes how it runs, or names
 * the first rule that forbids it, with the values. */
bool qv_conv3d_legal(const qv_conv3d_desc *desc, const struct qv_caps *caps, qv_lowering lowering,
                     char *text, size_t size);

/* ---- decide.c: which lowering computes it, and why ------------------------------------------- */

struct qv_conv3d_decision {
    qv_lowering lowering;
    char reason[QV_REASON_BYTES];
    unsigned legal; /* bit 1u << lowering is set for each legal one */
};

/* Chooses the lowering and reports why. forced is a qv_lowering, or -1 to choose. Returns QV_EINVAL
 * for an invalid description, or a forced lowering that is not legal. */
qv_status qv_conv3d_decide(const qv_conv3d_desc *desc, const struct qv_caps *caps, int forced,
                           struct qv_conv3d_decision *out, qv_error *err);
