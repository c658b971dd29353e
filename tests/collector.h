/* SPDX-License-Identifier: MIT */
/* Collects what a job told its sink about each source, by the source's key. It also checks that the
 * calls of one source come in order and one at a time. */
#ifndef QV_TESTS_COLLECTOR_H
#define QV_TESTS_COLLECTOR_H

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "qwenvit_job.h"
#include "tiny.h"

struct got {
    char key[32];
    int calls, lasts;
    bool in_call;
    qv_status status;
    bool cancelled, finite;
    char error[sizeof((qv_error *)0)->text];
    int64_t n, n_tokens;
    char *tokens; /* [1 + n_deepstack, n_tokens, out] */
    size_t bytes; /* The size of `tokens`. */
    double last_time_s;
};

struct collector {
    pthread_mutex_t lock;
    qv_model_info model;
    struct got got[512];
    int n, at_once, most_at_once;
    const char *fails; /* The key whose first call fails. */
    qv_status how;     /* The status with which it fails. */
    useconds_t slow;
};

static struct got *
find(struct collector *c, const char *key)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->got[i].key, key))
            return &c->got[i];
    assert_true(c->n < (int)(sizeof c->got / sizeof *c->got));
    snprintf(c->got[c->n].key, sizeof c->got[c->n].key, "%s", key);
    return &c->got[c->n++];
}

static void
keep(struct collector *c, struct got *g, const qv_job_result *r)
{
    const size_t row = (size_t)c->model.out_hidden * qv_dtype_bytes(r->dtype);
    const size_t one = (size_t)r->n_tokens * row;
    if (!g->tokens)
        g->tokens = calloc((size_t)(1 + c->model.n_deepstack), one);
    assert_non_null(g->tokens);
    assert_int_equal(r->first_row, g->n);
    for (int i = 0; i < 1 + c->model.n_deepstack; i++)
        memcpy(g->tokens + (size_t)i * one + (size_t)r->first_row * row,
               i ? r->deepstack[i - 1] : r->tokens, (size_t)r->n * row);
    g->n += r->n;
    g->n_tokens = r->n_tokens;
    g->bytes = (size_t)(1 + c->model.n_deepstack) * one;
    if (r->last && r->timestamps_s)
        g->last_time_s = r->timestamps_s[r->outcome.n_frames - 1];
}

static bool
is_finite(const qv_job_result *r)
{
    bool finite = isfinite(r->outcome.decode_s) && r->outcome.damaged_frames >= 0;
    finite = finite && isfinite(r->outcome.source_fps) && isfinite(r->outcome.duration_s) &&
             isfinite(r->outcome.sampled_fps);
    for (int64_t i = 0; r->timestamps_s && !r->status && i < r->outcome.n_frames; i++)
        finite = finite && isfinite(r->timestamps_s[i]);
    return finite;
}

static qv_status
collect(void *user, const qv_job_result *r, qv_error *err)
{
    struct collector *c = user;
    pthread_mutex_lock(&c->lock);
    struct got *g = find(c, r->key);
    c->at_once++;
    c->most_at_once = c->at_once > c->most_at_once ? c->at_once : c->most_at_once;
    assert_int_equal(g->lasts, 0);
    assert_false(g->in_call); /* Calls of other sources may be under way, but no other call of this
                               * one. */
    g->in_call = true;
    g->calls++;
    g->lasts += r->last;
    g->finite = is_finite(r);
    if (r->last) {
        g->status = r->status;
        g->cancelled = r->cancelled;
        snprintf(g->error, sizeof g->error, "%s", r->error);
    }
    assert_true(r->last || !r->status);
    if (r->n)
        keep(c, g, r);
    pthread_mutex_unlock(&c->lock);
    if (c->slow)
        usleep(c->slow);
    pthread_mutex_lock(&c->lock);
    c->at_once--;
    find(c, r->key)->in_call = false;
    pthread_mutex_unlock(&c->lock);
    if (c->fails && !strcmp(c->fails, r->key) && !r->status)
        return qv_fail(err, c->how, "%s: the sink does not want it", r->key);
    return QV_OK;
}

static struct collector *
collector_make(const struct tiny *t)
{
    struct collector *c = calloc(1, sizeof *c);
    assert_non_null(c);
    pthread_mutex_init(&c->lock, NULL);
    c->model = t->info;
    return c;
}

static void
collector_free(struct collector *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->got[i].tokens);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* A job on models; its sink is the collector. */
static qv_job *
collector_job(const struct tiny *t, int n_models, qv_job_options o, struct collector *c)
{
    qv_error err = { 0 };
    qv_job *job = NULL;
    qv_model *models[4];
    for (int i = 0; i < n_models; i++)
        models[i] = t[i].model;
    o.sink = collect;
    o.user = c;
    if (qv_job_open(models, (size_t)n_models, &o, &job, &err))
        fail_msg("%s", err.text);
    return job;
}

static void
job_add(qv_job *job, const qv_job_source *source)
{
    qv_error err = { 0 };
    if (qv_job_add(job, source, &err))
        fail_msg("%s", err.text);
}

#endif
