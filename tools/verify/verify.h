/* SPDX-License-Identifier: MIT */
/*
 * qwenvit verify: checks whether the lowered model is the same model. The checks fill rows and
 * print nothing, so that a test can use its own context.
 *
 * The distance of a row is |x - truth| / |truth|, in double. The worst row decides, never a mean
 * alone.
 */
#pragma once

#include "qwenvit.h"

struct qv_config;

/* ---- rows ------------------------------------------------------------------------------------ */

/* The distance of x from the truth. All fields are NaN if any value of either is not finite. */
struct verify_distance {
    double worst, mean; /* over rows; a row whose truth is zero counts 0 if equal, else infinite */
    double worst_cosine, pooled_cosine; /* pooled: cosine of the means over all rows */
    double max_abs;
    double alike; /* the number of rows of equal distance whose mean would be equally certain; at
                   * most the number of rows */
};

/* A bar is infinite if there is none. */
struct verify_row {
    char check[16]; /* "definition", "pulled", "rounding", "repeat", "against" */
    char name[48];  /* name of the layer, such as "blocks.0" */
    qv_dtype dtype;
    bool bits; /* only equality of bits counts, and only max_abs is set */
    struct verify_distance is;
    double yardstick_worst, yardstick_mean; /* distance of an honest rounding; NaN if there is no
                                             * yardstick */
    double bar_worst, bar_mean, bar_abs, bar_cosine;
    bool ok;
    char note[96]; /* what was compared, if not everything */
    char why[160]; /* the first bar that failed, with its value */
};

struct verify_table {
    struct verify_row *rows;
    size_t n, capacity;
};
void verify_table_free(struct verify_table *t);
/* Returns whether a row has a bar, without which `ok` says only that its values are finite. */
bool verify_is_judged(const struct verify_row *row);
const struct verify_row *verify_first_failure(const struct verify_table *t); /* NULL: none failed */

/* ---- checks ---------------------------------------------------------------------------------- */

/* Pixels of one or several clips, one after the other. pixel_values that were made from the bytes
 * of frames run as those bytes. */
struct verify_input {
    qv_input input;    /* bytes [frames, 16*h, 16*w, 3], or pixel_values f32 [sum t*h*w, row] */
    bool still;        /* an image, which is one frame with the image's norm */
    int64_t (*thw)[3]; /* [n] */
    size_t n;
    void *data;
};
void verify_input_free(struct verify_input *input);

struct verify_job {
    qv_context *ctx;
    const char *dir;
    const double *image_mean, *image_std; /* replace the checkpoint's; NULL keeps them */
    qv_dtype dtype;                       /* QV_DTYPE_AUTO: f32 and bf16 */
    void (*say)(const char *what);        /* progress; may be NULL */
};

/* Checks the model against itself: definition, pulled, rounding, repeat. The input is one clip of
 * frames. */
qv_status verify_model(const struct verify_job *job, const struct verify_input *input,
                       struct verify_table *out, qv_error *err);
/* Checks the model against the f32 tower of another context. */
qv_status verify_against_backend(const struct verify_job *job, qv_context *other,
                                 const struct verify_input *input, struct verify_table *out,
                                 qv_error *err);
/* Checks the model against a file of tools/reference/layers.py, on the pixels in it, which are left
 * in *input. */
qv_status verify_against_file(const struct verify_job *job, const char *path,
                              struct verify_input *input, struct verify_table *out, qv_error *err);

/* ---- parts that the checks share ------------------------------------------------------------- */

/* Layers as a layer hook sees them, then "tokens" and "deepstack.N" as they are pulled. */
struct verify_layer {
    char name[48];
    float *rows;
    int64_t n, cols;
};
struct verify_layers {
    struct verify_layer *layers;
    size_t n, capacity;
    bool lost; /* out of memory for a layer */
};
void verify_layers_free(struct verify_layers *layers);
struct verify_layer *verify_layer_find(const struct verify_layers *layers, const char *name);
bool verify_is_pulled(const struct verify_layer *layer);
/* Returns the layer of the tower that a pulled output comes from, and must equal: "merger" for
 * "tokens". For any other layer it returns the layer's own name. */
const char *verify_name_in_tower(const struct verify_layer *layer, char name[48]);

enum verify_run_kind {
    VERIFY_AS_IT_IS, /* without a hook: outputs only */
    VERIFY_WATCHED,  /* with every layer */
    VERIFY_IDEAL,    /* with every layer of an f32 model, each operation's output rounded to bf16
                      * once */
};
/* Runs the input through a fresh plan, and appends its layers to out. */
qv_status verify_run(qv_model *model, const struct verify_input *input, enum verify_run_kind kind,
                     struct verify_layers *out, qv_error *err);

/* The weights of an f32 model. */
enum verify_rounding {
    VERIFY_AS_STORED,
    VERIFY_ROUND_WEIGHTS, /* matrices and tables are rounded to bf16: the very values of a bf16
                           * model */
};
/* *inexact (may be NULL): whether rounding changes any weight that is stored. */
qv_status verify_load(const struct verify_job *job, qv_context *ctx, qv_dtype dtype,
                      enum verify_rounding rounding, qv_model **out, bool *inexact, qv_error *err);

/* The sums of a comparison: call begin, then row for every row, then end. */
struct verify_sums {
    struct verify_distance d;
    int64_t rows, cols;
    double *pooled; /* [2, cols] */
    double squares; /* sum of the squares of the rows' distances */
    bool finite;
};
qv_status verify_sums_begin(struct verify_sums *s, int64_t cols, qv_error *err);
void verify_sums_row(struct verify_sums *s, const float *x, const double *truth);
struct verify_distance verify_sums_end(struct verify_sums *s);
qv_status verify_compare(const float *x, const float *truth, int64_t rows, int64_t cols,
                         struct verify_distance *out, qv_error *err);

/* Appends a row without bars; returns NULL for QV_ENOMEM. verify_judge sets ok and why. */
struct verify_row *verify_add(struct verify_table *t, const char *check, const char *name,
                              qv_dtype dtype, qv_error *err);
void verify_judge(struct verify_row *row);

/* The yardstick that a layer is compared with. The bars are the distance between the rounded
 * yardstick and its exact version, so they come from rounding alone. Bars from the truth itself
 * would grow with any fault of the checkpoint, which the yardstick shares. */
struct verify_held_to {
    const float *truth;
    const float *yardstick, *exact; /* the yardstick rounded and exact; NULL for f32 */
    double slack;                   /* factor over the yardstick's distances; infinite: they are
                                     * only shown */
    bool ideal; /* the yardstick is an ideal tower, so chance is allowed for too */
    double cosine;
};
struct verify_held_to verify_held_to_ideal(void);
/* Returns how many times larger than another honest tower's errors an honest tower's may be by
 * chance, in the mean of so many rows of so many values. 4.7534 deviations are exceeded once in a
 * million. */
double verify_spread(int64_t values, double rows, double deviations);
qv_status verify_layer(const char *check, qv_dtype dtype, const struct verify_layer *l,
                       const struct verify_held_to *to, struct verify_table *out, qv_error *err);
/* Finds the rows of the layer of that name, which must have the size of `like`. */
qv_status verify_same_layer(const struct verify_layers *in, const char *name,
                            const struct verify_layer *like, const float **rows, qv_error *err);

qv_status verify_config(const struct verify_job *job, struct qv_config *out, qv_error *err);

bool verify_wants(const struct verify_job *job, qv_dtype dtype);
/* Turns the status of a bf16 tower into QV_OK, with a message, if the device has no bf16 GEMMs
 * (such as a CPU without AVX-512) and the user did not request bf16. */
qv_status verify_unless_left_out(const struct verify_job *job, qv_status status);

/* The f32 truth of a bf16 tower, and the layers of an ideal bf16 tower. */
struct verify_truth {
    struct verify_layers exact, ideal;
};
void verify_truth_free(struct verify_truth *t);
/* Computes the truth. Its weights are as stored or rounded to bf16; the ideal tower's are always
 * rounded. */
qv_status verify_truth(const struct verify_job *job, qv_context *ctx, enum verify_rounding rounding,
                       const struct verify_input *input, bool with_ideal, struct verify_truth *out,
                       qv_error *err);
qv_status verify_ours(const struct verify_job *job, qv_dtype dtype, enum verify_rounding rounding,
                      const struct verify_input *input, struct verify_layers *out, qv_error *err);

/* Compares the patch embedding `found` (the layer of that name) with the Conv3d's definition. */
qv_status verify_definition(const char *dir, const struct qv_config *config, qv_dtype dtype,
                            const struct verify_input *input, const struct verify_layer *found,
                            struct verify_table *out, qv_error *err);

/* A tensor of the tower in memory. The patch weight is [o, c, kd, kh, kw]. */
struct verify_tensor {
    qv_dtype dtype;
    int64_t values;
    void *data;
};
qv_status verify_read_tensor(const char *dir, const struct qv_config *config, const char *name,
                             struct verify_tensor *out, qv_error *err);
