/* SPDX-License-Identifier: MIT */
/* qwenvit cache fill: fills a folder from a list (qwenvit_clips.h). Signals end the run. */
#include <pthread.h>
#include <stdlib.h>

#include "cache_command.h"
#include "commit.h"
#include "encode.h"
#include "error.h"
#include "job/more.h"

/* ---- the fill -------------------------------------------------------------------------------- */

struct run {
    const struct tool_options *o;
    struct tool_list list;
    int64_t n_wanted;
    double list_s, look_s, job_s; /* time to read the list; to find its clips that the cache lacks;
                                   * to encode them */
    struct tool_devices devices;
    qv_cache_fill *fill;
    struct tool_job_progress progress;
    struct tool_reasons failures;
    pthread_mutex_t lock; /* guards messages and failures */
};

/* Reports a failed clip or, without a key, a warning about the whole run. */
static void
tell(void *user, const char *key, qv_status status, const char *words)
{
    struct run *r = user;
    pthread_mutex_lock(&r->lock);
    if (key)
        tool_reasons_lose(&r->failures, &r->o->to, NULL, key, status, words);
    else
        tool_complain("%s", words);
    pthread_mutex_unlock(&r->lock);
}

static bool
go_on(void *user, qv_job *job)
{
    struct run *r = user;
    pthread_mutex_lock(&r->lock);
    tool_job_progress_show(&r->progress, job);
    pthread_mutex_unlock(&r->lock);
    return !tool_signals_caught();
}

static qv_status
find_work(struct run *r, qv_error *err)
{
    const qv_cache_fill_options options = { .tokens = r->o->tokens,
                                            .no_deepstack = r->o->no_deepstack,
                                            .retry_failed = r->o->retry_failed,
                                            .trust = tool_cache_trust(r->o),
                                            .shard = r->o->shard[0],
                                            .n_shards = r->o->shard[1],
                                            .part_bytes = r->o->part_bytes,
                                            .part_seconds = r->o->part_seconds,
                                            .chunk_rows = r->o->chunk_rows,
                                            .clip = r->o->clip,
                                            .told = tell,
                                            .go_on = go_on,
                                            .user = r };
    return tool_cache_find_work(r->o->out, &options, &r->list, NULL, &r->n_wanted, &r->fill, err);
}

/* ---- the run --------------------------------------------------------------------------------- */

static qv_status
report(const struct run *r, const qv_cache_fill_counts *n, qv_error *err)
{
    const char *limit = r->progress.limit ? r->progress.limit : "";
    json_t *j =
        tool_json("cache:t done:I tokens:I frames:I failed:I damaged:I there:I failed_before:I "
                  "interrupted:b list_s:f look_s:f job_s:f peak_bytes:I version:s commit:s limit:s "
                  "text.total_s:f text.limit:s",
                  r->o->out, n->done, n->tokens, n->frames, n->failed, n->damaged, n->there,
                  n->failed_before, tool_signals_caught() != 0, r->list_s, r->look_s, r->job_s,
                  tool_peak_bytes(), qv_version(), QV_COMMIT, limit,
                  r->list_s + r->look_s + r->devices.load_s + r->job_s,
                  !strcmp(limit, "sink") ? "writing" : limit);
    tool_json_add_rates(&j, "", n->frames, n->tokens, n->seconds, r->devices.load_s);
    return tool_show(
        &r->o->to, j,
        "{cache}: {done} done, {tokens} tokens, {failed} failed; {there} already there, "
        "{failed_before} failed earlier[failed_before? (--retry-failed)][damaged?; "
        "{damaged} of the clips done with damaged frames]\n"
        "[done?{frames} frames in {text.total_s|time} ({load_s|time} to load the model); then "
        "{sampled_frames_per_s|1f} sampled frames and "
        "{tokens_per_s|1f} tokens per second[text.limit?, limited by {text.limit}]\n]",
        err);
}

static int
run_fill(struct run *r, qv_error *err)
{
    qv_cache_fill_counts n;
    tool_job_progress_begin(&r->progress, r->n_wanted, &r->o->to);
    qv_status s = qv_cache_fill_end(r->fill, r->devices.models, r->devices.n, err);
    tool_bar_end();
    qv_cache_fill_get_counts(r->fill, &n);
    tool_reasons_tell(&r->failures, &r->o->to);
    r->job_s = n.seconds;
    if (s) /* a disk that fails now is a device failure, not bad input */
        return tool_fail(s == QV_EIO ? QV_EBACKEND : s, err);
    s = report(r, &n, err);
    return s ? tool_fail(s, err) : n.failed || n.failed_before ? TOOL_FAILED : TOOL_DONE;
}

static int
run_all(struct run *r, qv_error *err)
{
    const double began_s = qv_seconds();
    qv_status s = tool_cache_list(r->o, &r->list, err);
    r->list_s = qv_seconds() - began_s;
    if (!s)
        s = find_work(r, err);
    r->look_s = qv_seconds() - began_s - r->list_s;
    if (!s)
        s = tool_devices_open(r->o, r->n_wanted, &r->devices, err);
    if (!s) /* a folder that cannot be made is bad input; a disk that fails later is not */
        s = qv_cache_fill_begin(r->fill, r->devices.models[0], err);
    return s ? tool_fail(s, err) : run_fill(r, err);
}

int
tool_cache_fill(const struct tool_options *o)
{
    struct run r = { .o = o, .lock = PTHREAD_MUTEX_INITIALIZER };
    qv_error err = { 0 };
    if (tool_check_sources(o, "cache fill"))
        return TOOL_USAGE;
    if (o->dry_run)
        return tool_cache_estimate(o);
    tool_signals_defer();
    const int code = run_all(&r, &err);
    qv_cache_fill_close(&r.fill);
    tool_list_free(&r.list);
    tool_devices_close(&r.devices);
    if (tool_signals_caught())
        tool_complain("interrupted: finished clips are sealed; run it again to continue");
    tool_signals_obey();
    return code;
}
