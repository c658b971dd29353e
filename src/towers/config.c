/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int64_t
qv_config_position_side(const struct qv_config *c)
{
    return (int64_t)(sqrt((double)c->n_positions) + 0.5);
}

bool
qv_config_pixels_are_exact(const struct qv_config *c, qv_dtype dtype)
{
    bool exact = dtype == QV_BF16;
    for (int i = 0; i < 3; i++)
        exact = exact && c->image.mean[i] == 0.5 && c->image.std[i] == 0.5 &&
                c->video.mean[i] == 0.5 && c->video.std[i] == 0.5;
    return exact;
}

void
qv_config_overrule(struct qv_config *c, const double *mean, const double *std)
{
    if (mean) {
        memcpy(c->image.mean, mean, sizeof c->image.mean);
        memcpy(c->video.mean, mean, sizeof c->video.mean);
    }
    if (std) {
        memcpy(c->image.std, std, sizeof c->image.std);
        memcpy(c->video.std, std, sizeof c->video.std);
    }
    if (mean && std && c->doubts_means)
        c->warning[0] = 0;
}

void
qv_config_warn(struct qv_config *c, const char *text)
{
    const size_t n = strlen(c->warning);
    snprintf(c->warning + n, sizeof c->warning - n, "%s%s", n ? "; " : "", text);
}
