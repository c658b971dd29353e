/* SPDX-License-Identifier: MIT */
/* Collects a job's results in its sink, by the source's key. It also checks the rules of the sink:
 * one begin before any rows, rows in order, one end as the last call, and one call per source at a
 * time. */
#pragma once

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "qwenvit_clips.h"
#include "tiny.h"

struct got {
    char key[32];
    int begins, calls, lasts; /* calls of begin, rows and end */
    bool in_call, has_failed; /* has_failed: it was refused, so that only its end may come */
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
    const char *fails; /* The first call of this kind for this key fails. */
    enum { IN_ROWS, IN_BEGIN, IN_END } where;
    qv_status how; /* The status with which it fails. */
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
keep(const struct collector *c, struct got *g, const qv_job_result *r, const qv_job_rows *rows)
{
    const qv_tokens *t = &rows->tokens;
    const size_t row = (size_t)c->model.out_hidden * qv_dtype_bytes(r->dtype);
    const size_t one = (size_t)r->n_tokens * row;
    if (!g->tokens)
        g->tokens = test_ends(calloc((size_t)(1 + c->model.n_deepstack), one), free);
    assert_int_equal(rows->first, g->n);
    for (int i = 0; i < 1 + c->model.n_deepstack; i++)
        memcpy(g->tokens + (size_t)i * one + (size_t)rows->first * row,
               i ? t->deepstack[i - 1] : t->tokens, (size_t)t->n * row);
    g->n += t->n;
    g->n_tokens = r->n_tokens;
    g->bytes = (size_t)(1 + c->model.n_deepstack) * one;
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

/* Notes that a call begins, and returns its source. */
static struct got *
enter(struct collector *c, const qv_job_result *r)
{
    pthread_mutex_lock(&c->lock);
    struct got *g = find(c, r->key);
    c->at_once++;
    c->most_at_once = c->at_once > c->most_at_once ? c->at_once : c->most_at_once;
    assert_int_equal(g->lasts, 0);
    assert_false(g->in_call); /* Calls of other sources may be in progress, but no other call of
                               * this one. */
    g->in_call = true;
    g->finite = is_finite(r);
    return g;
}

/* Notes that the call ends, and makes it fail if the test asks for that. */
static qv_status
leave(struct collector *c, struct got *g, int where, qv_error *err)
{
    pthread_mutex_unlock(&c->lock);
    if (c->slow)
        usleep(c->slow);
    pthread_mutex_lock(&c->lock);
    c->at_once--;
    g->in_call = false;
    const bool fails =
        c->fails && !strcmp(c->fails, g->key) && !g->status && (int)c->where == where;
    g->has_failed = g->has_failed || fails;
    pthread_mutex_unlock(&c->lock);
    return fails ? qv_fail(err, c->how, "%s: the sink refuses it", g->key) : QV_OK;
}

static qv_status
collect_begin(void *user, const qv_job_result *r, void **entry, qv_error *err)
{
    struct collector *c = user;
    struct got *g = enter(c, r);
    assert_int_equal(g->begins++, 0);
    assert_false(r->status || g->has_failed || *entry);
    *entry = c->where == IN_BEGIN && c->fails ? NULL : g;
    return leave(c, g, IN_BEGIN, err);
}

static qv_status
collect_rows(void *user, void *entry, const qv_job_result *r, const qv_job_rows *rows,
             qv_error *err)
{
    struct collector *c = user;
    struct got *g = enter(c, r);
    g->calls++;
    assert_int_equal(g->begins, 1);
    assert_true(entry == g || c->where == IN_BEGIN);
    assert_false(r->status || g->has_failed || r->timestamps_s);
    keep(c, g, r, rows);
    return leave(c, g, IN_ROWS, err);
}

static qv_status
collect_end(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    struct collector *c = user;
    struct got *g = enter(c, r);
    g->lasts++;
    assert_true(entry == (g->begins ? g : NULL) || c->where == IN_BEGIN);
    assert_true(r->status || g->calls);
    assert_true(r->status || !g->has_failed);
    if (!r->status && r->timestamps_s)
        g->last_time_s = r->timestamps_s[r->outcome.n_frames - 1];
    assert_true(!r->status || !r->timestamps_s);
    g->status = r->status;
    g->cancelled = r->cancelled;
    snprintf(g->error, sizeof g->error, "%s", r->error);
    return leave(c, g, IN_END, err);
}

static struct collector *
collector_make(const struct tiny *t)
{
    struct collector *c = test_ends(calloc(1, sizeof *c), free);
    pthread_mutex_init(&c->lock, NULL);
    c->model = t->info;
    return c;
}

/* A job on models; its sink is the collector. */
static qv_job *
collector_job(const struct tiny *t, int n_models, qv_job_options o, struct collector *c)
{
    qv_job *job = NULL;
    qv_model *models[4];
    for (int i = 0; i < n_models; i++)
        models[i] = t[i].model;
    o.sink = (qv_job_sink){ collect_begin, collect_rows, collect_end, c };
    assert_ok(qv_job_open(models, (size_t)n_models, &o, &job, ERR));
    return job;
}

static void
job_add(qv_job *job, const qv_job_source *source)
{
    assert_ok(qv_job_add(job, source, ERR));
}
