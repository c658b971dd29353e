/* SPDX-License-Identifier: MIT */
/* config.json and the preprocessor files of a checkpoint -> the tower's numbers. */
#ifndef QV_TOWERS_CONFIG_H
#define QV_TOWERS_CONFIG_H

#include "family.h"
#include "mmproj.h"

enum { QV_MOST_DEPTH = 512 };

struct qv_config {
    const struct qv_family *family;
    char model_type[64]; /* of the whole model: "qwen3_vl" */
    int64_t depth, hidden, heads, intermediate, out_hidden;
    int64_t merger_intermediate; /* of a gated merger */
    int64_t mlp_padding; /* values of 0 behind `intermediate`, for the device (not from the file) */
    int64_t in_channels, patch, temporal, merge;
    int64_t n_positions; /* learned position table [n_positions, hidden], a square grid; 0: none */
    int64_t image_size;  /* side of images that the table has a position for each patch of, where
                            config.json says that instead; 0: it does not */
    int64_t window;      /* side of an attention window, in pixels; 0: there are none */
    bool full_attention[QV_MOST_DEPTH]; /* of a block: it does not look at windows */
    int64_t n_deepstack;
    int64_t deepstack[QV_MAX_DEEPSTACK]; /* block indices, in the order of their mergers */
    double norm_eps, rope_theta;
    int act; /* enum qv_act of the MLP */
    qv_preprocess image, video;
    /* Of a GGUF file: what it does not say, and whence that is; what it seems to say wrongly of means and
     * deviations. "" where there is nothing to say. */
    char note[QV_MMPROJ_TEXT], warning[QV_MMPROJ_TEXT];
};

static inline int64_t
qv_config_head_dim(const struct qv_config *c)
{
    return c->hidden / c->heads;
}

/* Side of a window in merged cells; 0: there are none. */
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

/* The learned positions are a square of so many a side. */
int64_t qv_config_position_side(const struct qv_config *c);

/* Means and deviations of images and clips are all 1/2: then 255 times a normalised byte is a whole
 * number, exact in bf16. */
bool qv_config_pixels_are_exact(const struct qv_config *c);

/*
 * Reads dir/config.json; for images the "image_processor" of dir/processor_config.json (where
 * transformers 5 writes both), else dir/preprocessor_config.json; for clips its "video_processor",
 * else dir/video_preprocessor_config.json, else dir/preprocessor_config.json. Keys left out, and
 * files that are not there, take transformers' class defaults; patch sizes the tower's. Of a GGUF file, or
 * a folder with one and no safetensors, the file's keys are read in place of these (mmproj.h). QV_EIO,
 * QV_EFORMAT naming file, field and value, QV_EUNSUPPORTED for a family that is known but not done,
 * or not known, and for preprocessing that is not.
 */
qv_status qv_config_read(const char *dir, struct qv_config *out, qv_error *err);

#endif
