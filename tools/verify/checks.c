/* SPDX-License-Identifier: MIT */
/* qwenvit verify: the checks, which compare layers with their truth. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "towers/config.h"
#include "error.h"
#include "verify.h"

/* Bar for f32. A correct tower is at 1e-6; TF32 or bf16 inside would exceed the bar. */
static const double f32_worst = 2e-5;

/*
 * The bars of bf16 are multiples of the distance of the ideal bf16 tower, which rounds the output
 * of every operation and nothing else. A real tower may round one thing more than the eight
 * operations of a block, namely the attention's probabilities: then it is sqrt(9/8) = 1.06 times as
 * far from the truth. With AVX-512 BF16, 1.002 was seen on tower M.
 *
 * Both distances are random draws, because from the first block on the two towers round different
 * values. A row's distance is the norm of its c errors. If these are independent, the ratio of two
 * such norms squared is F(c, c), and the norms' own ratio has a nearly normal logarithm with
 * deviation 1/sqrt(c - 4). For the mean of n rows of like distance the deviation is 1/sqrt(n (c -
 * 4)); rows of unlike distance count as fewer (verify_distance.alike). For the worst row it is that
 * of a single row: if one row is far worse than all others, it alone is drawn twice, and if several
 * are alike, the highest of several draws lie closer together. The bar is what an honest tower that
 * rounds one thing more exceeds once in a million, and at least 1.1.
 *
 * For rows of 1024 that is 1.23 for the worst, and 1.1 for the mean from 17 rows on. For the golden
 * towers' rows of 24 and 32 it is 3.07 and 2.60 for the worst, and honest towers reached 2.34 and
 * 2.04. Errors are not quite independent: the ratio's logarithm is 1.0 to 1.4 times as wide there,
 * and up to 2 times where a merger makes 2560 values of 4096.
 */
static const double least_slack = 1.1, one_more_rounding = 1.0606601717798212;
static const double once_in_a_million = 4.7534;
static const double least_cosine = 0.99;

double
verify_spread(int64_t values, double rows, double deviations)
{
    return values > 4 ? exp(deviations / sqrt((double)(values - 4) * rows)) : INFINITY;
}

static double
slack_over_ideal(int64_t values, double rows)
{
    double honest = one_more_rounding * verify_spread(values, rows, once_in_a_million);
    return honest > least_slack ? honest : least_slack;
}

static void
say(const struct verify_job *job, const char *what)
{
    if (job->say)
        job->say(what);
}

bool
verify_wants(const struct verify_job *job, qv_dtype dtype)
{
    return job->dtype == QV_DTYPE_AUTO || job->dtype == dtype;
}

/* ---- a layer against its truth --------------------------------------------------------------- */

qv_status
verify_layer(const char *check, qv_dtype dtype, const struct verify_layer *l,
             const struct verify_held_to *to, struct verify_table *out, qv_error *err)
{
    struct verify_distance yard = { 0 };
    struct verify_row *row = verify_add(out, check, l->name, dtype, err);
    if (!row)
        return QV_ENOMEM;
    qv_status status = verify_compare(l->rows, to->truth, l->n, l->cols, &row->is, err);
    if (!status && to->yardstick)
        status = verify_compare(to->yardstick, to->exact, l->n, l->cols, &yard, err);
    if (status)
        return status;
    if (to->yardstick) {
        row->yardstick_worst = yard.worst;
        row->yardstick_mean = yard.mean;
        double worst = to->ideal ? slack_over_ideal(l->cols, 1) : to->slack;
        double mean = to->ideal ? slack_over_ideal(l->cols, yard.alike) : to->slack;
        row->bar_worst = isinf(worst) ? INFINITY : worst * yard.worst;
        row->bar_mean = isinf(mean) ? INFINITY : mean * yard.mean;
        row->bar_cosine = to->cosine;
    } else {
        row->bar_worst = f32_worst;
    }
    verify_judge(row);
    return QV_OK;
}

struct verify_held_to
verify_held_to_ideal(void)
{
    return (struct verify_held_to){ .ideal = true, .cosine = least_cosine };
}

qv_status
verify_same_layer(const struct verify_layers *in, const char *name, const struct verify_layer *like,
                  const float **rows, qv_error *err)
{
    const struct verify_layer *l = verify_layer_find(in, name);
    if (!l || l->n != like->n || l->cols != like->cols)
        return qv_fail(err, QV_ESTATE, "layer %s is [%lld, %lld] in one run but not in the other",
                       name, (long long)like->n, (long long)like->cols);
    *rows = l->rows;
    return QV_OK;
}

/* Compares every layer of a run, and every pulled output, with the layers of the truth. An ideal
 * tower, if there is one, sets the bars. */
static qv_status
check_layers(const char *check, qv_dtype dtype, const struct verify_layers *found,
             const struct verify_layers *truth, const struct verify_layers *ideal,
             struct verify_table *out, qv_error *err)
{
    qv_status status = QV_OK;
    for (size_t i = 0; i < found->n && !status; i++) {
        char name[48];
        const struct verify_layer *l = &found->layers[i];
        struct verify_held_to to = verify_held_to_ideal();
        status = verify_same_layer(truth, verify_name_in_tower(l, name), l, &to.truth, err);
        to.exact = to.truth;
        if (!status && ideal)
            status = verify_same_layer(ideal, name, l, &to.yardstick, err);
        if (!status)
            status = verify_layer(check, dtype, l, &to, out, err);
    }
    return status;
}

/* ---- equal bits ------------------------------------------------------------------------------ */

/* Compares a layer with the rows that it must equal; the row says what differs. */
static qv_status
compare_bits(const struct verify_layer *l, const float *wanted, struct verify_row *row,
             qv_error *err)
{
    struct verify_distance d = { 0 };
    qv_status status = verify_compare(l->rows, wanted, l->n, l->cols, &d, err);
    if (status)
        return status;
    row->ok =
        !memcmp(l->rows, wanted, (size_t)(l->n * l->cols) * sizeof *wanted) && isfinite(d.worst);
    if (!row->ok) {
        row->is.max_abs = d.max_abs;
        snprintf(row->why, sizeof row->why, "%s differs by up to %.3g", l->name, d.max_abs);
    }
    return QV_OK;
}

/* Adds one row for all layers of run b, which must equal those of run a. If a and b are the same
 * run, each pulled output must equal the layer that it comes from. */
static qv_status
check_bits(const char *check, const char *name, qv_dtype dtype, const struct verify_layers *a,
           const struct verify_layers *b, struct verify_table *out, qv_error *err)
{
    struct verify_row *row = verify_add(out, check, name, dtype, err);
    if (!row)
        return QV_ENOMEM;
    row->bits = row->ok = true;
    size_t n = 0;
    for (size_t i = 0; i < b->n && row->ok; i++) {
        char from[48];
        const struct verify_layer *l = &b->layers[i];
        const float *other = NULL;
        if (a == b && !verify_is_pulled(l))
            continue;
        qv_status status =
            verify_same_layer(a, a == b ? verify_name_in_tower(l, from) : l->name, l, &other, err);
        if (!status)
            status = compare_bits(l, other, row, err);
        if (status)
            return status;
        if (!row->ok)
            snprintf(row->name, sizeof row->name, "%s", l->name);
        n++;
    }
    snprintf(row->note, sizeof row->note, "%zu outputs", n);
    return QV_OK;
}

static qv_status
check_repeat(const struct verify_job *job, qv_model *model, qv_dtype dtype,
             const struct verify_input *input, const struct verify_layers *first,
             struct verify_table *out, qv_error *err)
{
    static const struct {
        const char *name;
        enum verify_run_kind kind;
    } runs[] = { { "every layer", VERIFY_WATCHED }, { "unwatched", VERIFY_AS_IT_IS } };
    qv_status status = QV_OK;
    say(job, "once more");
    for (size_t i = 0; i < sizeof runs / sizeof *runs && !status; i++) {
        struct verify_layers again = { 0 };
        status = verify_run(model, input, runs[i].kind, &again, err);
        if (!status)
            status = check_bits("repeat", runs[i].name, dtype, first, &again, out, err);
        verify_layers_free(&again);
    }
    return status;
}

/* ---- the model against itself ---------------------------------------------------------------- */

void
verify_truth_free(struct verify_truth *t)
{
    verify_layers_free(&t->exact);
    verify_layers_free(&t->ideal);
}

static qv_status
run_ideal(const struct verify_job *job, qv_model *model, const struct verify_input *input,
          struct verify_truth *out, qv_error *err)
{
    say(job, "ideal bf16");
    return verify_run(model, input, VERIFY_IDEAL, &out->ideal, err);
}

qv_status
verify_truth(const struct verify_job *job, qv_context *ctx, enum verify_rounding rounding,
             const struct verify_input *input, bool with_ideal, struct verify_truth *out,
             qv_error *err)
{
    qv_model *model = NULL;
    bool inexact = false;
    say(job, "the truth: f32");
    qv_status status = verify_load(job, ctx, QV_F32, rounding, &model, &inexact, err);
    if (!status)
        status = verify_run(model, input, VERIFY_WATCHED, &out->exact, err);
    if (!status && with_ideal && inexact && rounding == VERIFY_AS_STORED) {
        qv_model_free(&model);
        status = verify_load(job, ctx, QV_F32, VERIFY_ROUND_WEIGHTS, &model, NULL, err);
    }
    if (!status && with_ideal)
        status = run_ideal(job, model, input, out, err);
    qv_model_free(&model);
    return status;
}

/* Checks the tower in one dtype. The f32 tower of a bf16 checkpoint is the truth of its bf16 tower
 * too, so it is kept for that, together with the ideal tower. */
static qv_status
verify_dtype(const struct verify_job *job, const struct qv_config *config, qv_dtype dtype,
             const struct verify_input *input, struct verify_truth *truth, struct verify_table *out,
             qv_error *err)
{
    const bool f32 = dtype == QV_F32;
    qv_model *model = NULL;
    struct verify_layers seen = { 0 };
    bool inexact = true;
    qv_status status = QV_OK;
    if (!f32 && !truth->exact.n)
        status = verify_truth(job, job->ctx, VERIFY_ROUND_WEIGHTS, input, true, truth, err);
    say(job, qv_dtype_name(dtype));
    if (!status)
        status = verify_load(job, job->ctx, dtype, VERIFY_AS_STORED, &model, &inexact, err);
    if (!status)
        status = verify_run(model, input, VERIFY_WATCHED, &seen, err);
    if (!status)
        status = verify_definition(job->dir, config, dtype, input,
                                   verify_layer_find(&seen, "patch_embed"), out, err);
    if (!status && !f32)
        status = check_layers("rounding", dtype, &seen, &truth->exact, &truth->ideal, out, err);
    if (!f32)
        verify_truth_free(truth);
    if (!status)
        status = check_bits("pulled", "every output", dtype, &seen, &seen, out, err);
    if (!status)
        status = check_repeat(job, model, dtype, input, &seen, out, err);
    const bool keep = f32 && verify_wants(job, QV_BF16) && !status && !inexact;
    if (keep)
        status = run_ideal(job, model, input, truth, err);
    qv_model_free(&model);
    if (keep)
        truth->exact = seen;
    else
        verify_layers_free(&seen);
    return status;
}

qv_status
verify_unless_left_out(const struct verify_job *job, qv_status status)
{
    if (status != QV_EUNSUPPORTED || job->dtype != QV_DTYPE_AUTO)
        return status;
    say(job, "bf16 skipped: this device has no bf16 GEMMs");
    return QV_OK;
}

qv_status
verify_model(const struct verify_job *job, const struct verify_input *input,
             struct verify_table *out, qv_error *err)
{
    struct qv_config config;
    struct verify_truth truth = { 0 };
    qv_status status = verify_config(job, &config, err);
    if (!status && verify_wants(job, QV_F32))
        status = verify_dtype(job, &config, QV_F32, input, &truth, out, err);
    if (!status && verify_wants(job, QV_BF16))
        status = verify_unless_left_out(job, verify_dtype(job, &config, QV_BF16, input, &truth, out,
                                                          err));
    verify_truth_free(&truth);
    return status;
}

/* ---- against another backend ----------------------------------------------------------------- */

/* Runs our tower and returns its layers. In f32 its weights are rounded to bf16 if the truth's
 * weights are. */
qv_status
verify_ours(const struct verify_job *job, qv_dtype dtype, enum verify_rounding rounding,
            const struct verify_input *input, struct verify_layers *out, qv_error *err)
{
    qv_model *model = NULL;
    say(job, qv_dtype_name(dtype));
    qv_status status = verify_load(job, job->ctx, dtype, rounding, &model, NULL, err);
    if (!status)
        status = verify_run(model, input, VERIFY_WATCHED, out, err);
    qv_model_free(&model);
    return status;
}

qv_status
verify_against_backend(const struct verify_job *job, qv_context *other,
                       const struct verify_input *input, struct verify_table *out, qv_error *err)
{
    static const qv_dtype dtypes[] = { QV_F32, QV_BF16 };
    struct verify_truth truth = { 0 };
    qv_status status = verify_truth(job, other, VERIFY_ROUND_WEIGHTS, input,
                                    verify_wants(job, QV_BF16), &truth, err);
    for (int i = 0; i < 2 && !status; i++) {
        struct verify_layers seen = { 0 };
        if (!verify_wants(job, dtypes[i]))
            continue;
        status = verify_ours(job, dtypes[i], VERIFY_ROUND_WEIGHTS, input, &seen, err);
        if (!status)
            status = check_layers("against", dtypes[i], &seen, &truth.exact,
                                  i ? &truth.ideal : NULL, out, err);
        verify_layers_free(&seen);
        if (dtypes[i] == QV_BF16)
            status = verify_unless_left_out(job, status);
    }
    verify_truth_free(&truth);
    return status;
}
