/* SPDX-License-Identifier: MIT */
/*
 * How a Conv3d is run, and why: pure functions of a description, a device's capabilities and its
 * thresholds. Nothing here computes on activations, allocates or knows a device.
 */
#ifndef QV_CONV3D_DECIDE_H
#define QV_CONV3D_DECIDE_H

#include "legal.h"

/* Where one way starts to pay over another; still wins wherever it is legal, and frames too. */
struct qv_conv3d_thresholds {
    int64_t by_depth_max_kd; /* kernels deeper than this go to direct */
    int64_t by_depth_min_c;  /* dense ones of fewer channels too; depthwise goes by depth */
    int64_t rows_min_o; /* with fewer outputs, channels-last frames are not copied into rows for a
                           GEMM, but go to frames, by depth or direct */
};

/* Of a device, by its backend's name and its description; an unknown one goes direct. */
const struct qv_conv3d_thresholds *qv_conv3d_thresholds_of(const char *backend,
                                                           const struct qv_caps *caps);

struct qv_conv3d_decision {
    qv_lowering lowering;
    char reason[QV_REASON_BYTES];
    unsigned legal; /* bit 1u << lowering */
};

/* The lowering, and why. forced: a qv_lowering, or -1 to choose. QV_EINVAL for a bad description,
 * or a forced lowering that is not legal. */
qv_status qv_conv3d_decide(const qv_conv3d_desc *desc, const struct qv_caps *caps,
                           const struct qv_conv3d_thresholds *thresholds, int forced,
                           struct qv_conv3d_decision *out, qv_error *err);

#endif
