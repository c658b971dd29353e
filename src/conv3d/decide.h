/* SPDX-License-Identifier: MIT */
/*
 * Decides how a Conv3d is run, and why: pure functions of a description and a device's
 * capabilities. Nothing here computes on activations, allocates or knows a device.
 */
#ifndef QV_CONV3D_DECIDE_H
#define QV_CONV3D_DECIDE_H

#include "legal.h"

struct qv_conv3d_decision {
    qv_lowering lowering;
    char reason[QV_REASON_BYTES];
    unsigned legal; /* bit 1u << lowering is set for each legal one */
};

/* Chooses the lowering and says why. forced is a qv_lowering, or -1 to choose. Returns QV_EINVAL
 * for a bad description, or a forced lowering that is not legal. */
qv_status qv_conv3d_decide(const qv_conv3d_desc *desc, const struct qv_caps *caps, int forced,
                           struct qv_conv3d_decision *out, qv_error *err);

#endif
