/* SPDX-License-Identifier: MIT */
/* A tower's numbers, as read from a checkpoint (read_config.h), and values derived from them. */
#pragma once

#include "family.h"
#include "qwenvit.h"

enum { QV_MOST_DEPTH = 512, QV_CONFIG_NOTE = 640, QV_CONFIG_WARNING = 1536 };

typedef char QV_CONFIG_TEXT;
typedef int64_t QV_CONFIG_INT, QV_CONFIG_LAYERS;
typedef double QV_CONFIG_REAL;
typedef int QV_CONFIG_ACT;
typedef bool QV_CONFIG_BLOCKS;
typedef qv_preprocess QV_CONFIG_PREPROCESS;

/* Its members are listed in config.inc. */
struct qv_config {
#define QV_CONFIG(kind, member, dimensions) QV_CONFIG_##kind member dimensions;
#define QV_CONFIG_APART(type, member, dimensions) type member dimensions;
#include "config.inc"
};

static inline int64_t
qv_config_head_dim(const struct qv_config *c)
{
    return c->hidden / c->heads;
}

/* The side of a window in merged cells; 0 if there are no windows. */
static inline int64_t
qv_config_window_cells(const struct qv_config *c)
{
    return c->window / (c->patch * c->merge);
}

/* Values in a patch row: channels * temporal * patch^2. */
static inline int64_t
qv_config_row_dim(const struct qv_config *c)
{
    return c->in_channels * c->temporal * c->patch * c->patch;
}

/* The side of the square grid of learned positions. */
int64_t qv_config_position_side(const struct qv_config *c);

/* Returns whether patch rows of this dtype hold 255 times a normalised byte, which the patch
 * embedding's alpha divides by 255. This is so in bf16 if all means and deviations, of images and
 * clips, are 1/2: the rows then are integers, which are exact. */
bool qv_config_pixels_are_exact(const struct qv_config *c, qv_dtype dtype);

/* Replaces the checkpoint's means and deviations with the caller's; NULL keeps the checkpoint's. If
 * the caller gives both, a warning about means is moot and is dropped. */
void qv_config_overrule(struct qv_config *c, const double *mean, const double *std);

/* Appends to a warning. */
void qv_config_warn(struct qv_config *c, const char *text);

/* ---- identity.c ------------------------------------------------------------------------------ */

enum { QV_IDENTITY_SIZE = 40 };

/*
 * Makes the identity of a tower: a hash of the weights' digest ("": unknown) and of everything in
 * config.json and the preprocessor files that affects tokens. Towers with equal identities give the
 * same tokens, except for the dtype and device that compute them. *numbers is set to the
 * config.json values in the hash, as a JSON object that the caller free()s. Returns QV_ENOMEM.
 */
qv_status qv_identity_make(const struct qv_config *c, const char *digest,
                           char identity[QV_IDENTITY_SIZE], char **numbers, qv_error *err);
