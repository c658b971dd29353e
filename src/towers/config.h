/* SPDX-License-Identifier: MIT */
/* config.json and the preprocessor files of a checkpoint -> the tower's numbers. */
#ifndef QV_SRC_CONFIG_H
#define QV_SRC_CONFIG_H

#include "qwenvit.h"

struct qv_config {
    char model_type[64]; /* of the whole model: "qwen3_vl" */
    int64_t depth, hidden, heads, intermediate, out_hidden;
    int64_t mlp_padding; /* values of 0 behind `intermediate`, for the device (not from the file) */
    int64_t in_channels, patch, temporal, merge;
    int64_t n_positions; /* learned position table [n_positions, hidden], a square grid */
    int64_t n_deepstack;
    int64_t deepstack[QV_MAX_DEEPSTACK]; /* block indices, in the order of their mergers */
    double rope_theta, norm_eps;
    int act; /* enum qv_act of the MLP */
    qv_preprocess image, video;
};

static inline int64_t
qv_config_head_dim(const struct qv_config *c)
{
    return c->hidden / c->heads;
}

/* Values in a patch row: channels * temporal * patch^2. */
static inline int64_t
qv_config_row_dim(const struct qv_config *c)
{
    return c->in_channels * c->temporal * c->patch * c->patch;
}

/*
 * Reads dir/config.json; for pictures the "image_processor" of dir/processor_config.json (where
 * transformers 5 writes both), else dir/preprocessor_config.json; for clips its "video_processor",
 * else dir/video_preprocessor_config.json, else dir/preprocessor_config.json. Keys left out, and
 * files that are not there, take transformers' class defaults; patch sizes the tower's. QV_EIO,
 * QV_EFORMAT naming file, field and value, QV_EUNSUPPORTED for a family that is known but not done,
 * or not known, and for preprocessing that is not.
 */
qv_status qv_config_read(const char *dir, struct qv_config *out, qv_error *err);

#endif
