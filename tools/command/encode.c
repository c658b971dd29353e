/* SPDX-License-Identifier: MIT */
/*
 * qwenvit encode: turns clips and images into safetensors of vision tokens. A job (qwenvit_clips.h)
 * does the work; this file chooses the clips, their output files and the devices, and token_sink.c
 * writes the results.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "clips/decoders.h"
#include "encode.h"
#include "engine/context.h"
#include "error.h"
#include "files/atomic_file.h"
#include "job/more.h"
#include "list.h"
#include "path.h"

enum { SINKS = 4 };

/* ---- names ----------------------------------------------------------------------------------- */

/* Returns KEY.ENDING in a folder, whose name ends in a slash, for free(). */
static char *
name_in(const char *folder, const char *key, const char *ending)
{
    char *path;
    return asprintf(&path, "%s%s%s", folder, key, ending) < 0 ? NULL : path;
}

/* Returns whether OUT is a folder, which is created if it does not exist. */
static bool
is_folder(const struct tool_options *o, const struct tool_list *list)
{
    const size_t n = strlen(o->output);
    return o->list || list->n > 1 || list->has_folders || o->output[n - 1] == '/' ||
           tool_is_folder(o->output);
}

/* Chooses the format by the file's extension; a name without one is a token file. */
static qv_status
choose_format(const char *path, const struct qv_format **format, qv_error *err)
{
    const char *dot = strrchr(path, '.');
    const struct qv_format *const *f = qv_formats;
    while (dot && *f && strcasecmp((*f)->ending, dot) != 0)
        f++;
    *format = dot && *f ? *f : &qv_token_files;
    return *format == &qv_token_files ? tool_check_token_file(path, err) : QV_OK;
}

/* Names an output per clip: in `folder`, or OUT itself if that is NULL. Fails if an output is a
 * clip, the list, a file of the model, or another output. */
static qv_status
name_outputs(const struct tool_options *o, const struct tool_list *list, const char *folder,
             char **paths, struct tool_output *outputs, qv_error *err)
{
    const struct qv_format *format = &qv_token_files;
    const qv_status status =
        folder ? tool_list_check_files(list, o->list, err) : choose_format(o->output, &format, err);
    for (size_t i = 0; i < list->n && !status; i++) {
        const struct tool_entry *entry = &list->at[i];
        outputs[i].clip = entry->path;
        outputs[i].key = o->list ? entry->key : NULL;
        outputs[i].own = entry->own;
        outputs[i].format = format;
        outputs[i].path = paths[i] =
            folder ? name_in(folder, entry->key, format->ending) : strdup(o->output);
        if (!paths[i])
            return qv_fail(err, QV_ENOMEM, "no memory for the names of %zu outputs", list->n);
    }
    return status ? status
                  : tool_check_list_outputs(o, list, (const char *const *)paths, list->n, err);
}

/* Makes OUT, which is a folder for several clips, if it does not exist. `inside` is its name with a
 * slash at the end. */
static qv_status
make_output_folder(const char *folder, char *inside, qv_error *err)
{
    qv_make_folders(inside);
    if (tool_is_folder(folder))
        return QV_OK;
    mkdir(folder, 0777);
    return qv_fail(err, QV_EIO,
                   "%s: several clips need a folder for -o, and it cannot be created: %s", folder,
                   strerror(errno));
}

/* ---- devices --------------------------------------------------------------------------------- */

void
tool_devices_close(struct tool_devices *d)
{
    for (size_t i = 0; i < TOOL_MOST_DEVICES; i++) {
        qv_model_free(&d->models[i]);
        tool_close_context(&d->contexts[i], &d->infos[i]);
    }
    d->n = 0;
}

/* Opens the decoders of device i; `wait`: waits until they are open. */
static void
open_decoders(const struct tool_options *o, const struct tool_devices *d, size_t i, bool wait)
{
    if (!strcmp(d->infos[i].backend, "cuda"))
        qv_decoder_gpu(o->clip.decoder, d->contexts[i]->device, wait, NULL);
}

qv_status
tool_devices_open(const struct tool_options *o, int64_t n_clips, struct tool_devices *d,
                  qv_error *err)
{
    const double began_s = qv_seconds();
    const bool opens_decoders = o->clip.decoder && o->clip.decode == QV_DECODE_AUTO &&
                                qv_job_wants_gpus(0, NULL, (size_t)n_clips);
    qv_model_info info;
    qv_status status = QV_OK;
    for (; d->n < o->n_devices && !status; d->n++) {
        status = tool_open_context(o, o->devices[d->n], &d->contexts[d->n], &d->infos[d->n], err);
        if (status == QV_ENODEVICE && o->all_devices && d->n) {
            status = QV_OK; /* the previous device was the last */
            break;
        }
        if (status)
            break;
        if (opens_decoders)
            open_decoders(o, d, d->n, false);
        status =
            tool_load_model(o, d->contexts[d->n], o->model, false, &d->models[d->n], &info, err);
    }
    for (size_t i = 0; i < d->n && opens_decoders && !status; i++)
        open_decoders(o, d, i, true);
    d->load_s = qv_seconds() - began_s;
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Shows progress. A signal cancels the job. */
static bool
go_on(void *user, qv_job *job)
{
    struct tool_encoder *e = user;
    pthread_mutex_lock(&e->lock);
    tool_job_progress_show(&e->progress, job);
    pthread_mutex_unlock(&e->lock);
    return !tool_signals_caught();
}

/* A single clip is encoded as by qv_encode, in the capacity that suits it. */
static qv_job_options
job_options(struct tool_encoder *e)
{
    const struct tool_options *o = e->o;
    return (qv_job_options){ .sink = tool_sink(e),
                             .output = o->output_dtype ? o->output_dtype : e->model.dtype,
                             .decoders = e->many ? 0 : 1,
                             .sinks = e->many ? SINKS : 1,
                             .chunk_rows = o->chunk_rows,
                             .alone = !e->many,
                             .keep_frames = o->drawing,
                             .hidden = o->hidden,
                             .clip = o->clip,
                             .go_on = e->many ? go_on : NULL };
}

static qv_status
run_job(struct tool_encoder *e, qv_job *job, qv_error *err)
{
    qv_status status = QV_OK;
    const double began_s = qv_seconds();
    tool_job_progress_begin(&e->progress, (int64_t)e->n, &e->o->to);
    if (e->many) {
        tool_signals_defer();
        go_on(e, job); /* write the first record at once */
    }
    for (size_t i = 0; i < e->n && !status; i++) {
        struct tool_output *output = &e->outputs[i];
        const qv_clip_options options = qvm_options_merge(output->own, &e->o->clip);
        const qv_job_source source = {
            .key = output->key, .path = output->clip, .clip = &options, .user = output
        };
        status = qv_job_add(job, &source, err);
    }
    qv_error ended = { 0 };
    const qv_status end = qv_job_end(job, &ended);
    if (!status || tool_signals_caught()) { /* after a signal, adding fails */
        status = end;
        *err = ended;
    }
    e->job_s = qv_seconds() - began_s;
    tool_bar_end();
    return status;
}

/* Encodes on open devices. If one of several clips fails, the others go on; a lost device ends all
 * of them. */
static int
encode_with(struct tool_encoder *e, const struct tool_devices *d, qv_error *err)
{
    qv_model_get_info(d->models[0], &e->model);
    const qv_job_options options = job_options(e);
    qv_job *job = NULL;
    qv_status status = qv_job_open(d->models, d->n, &options, &job, err);
    if (!status)
        status = run_job(e, job, err);
    int code = status ? tool_fail(status, err) : TOOL_DONE;
    tool_reasons_tell(&e->notes, &e->o->to);
    tool_reasons_tell(&e->failures, &e->o->to);
    if (!code && e->many) {
        status = tool_report_job(e, job, err);
        code = status ? tool_fail(status, err) : code;
    }
    qv_job_close(&job);
    if (!code && tool_signals_caught())
        tool_complain("interrupted: %zu of %zu clips done, %zu failed, %zu not done", e->n_done,
                      e->n, e->n_failed, e->n - e->n_done - e->n_failed);
    if (code || !e->n_failed)
        return code;
    if (!e->many)
        return e->code;
    tool_complain("%zu of %zu clips failed", e->n_failed, e->n);
    return TOOL_FAILED;
}

int
tool_check_sources(const struct tool_options *o, const char *name)
{
    const char *wrong = !o->n_arguments && !o->list ? "no clip given"
                        : o->n_arguments && o->list ? "give clips or --list, not both"
                                                    : NULL;
    if (wrong)
        tool_complain("%s: %s (qwenvit %s --help)", name, wrong, name);
    return wrong ? TOOL_USAGE : TOOL_DONE;
}

/* Checks once, before any work, for mistakes that would make every clip fail. */
static int
check_usage(const struct tool_options *o)
{
    const char *wrong =
        o->drawing && (o->list || o->n_arguments > 1) ? "--drawing needs a single clip"
        : o->list && (o->clip.start_s > 0 || o->clip.end_s > 0)
            ? "--start and --end cannot be used with --list, whose lines have their own"
            : NULL;
    if (wrong)
        tool_complain("encode: %s (qwenvit encode --help)", wrong);
    return wrong ? TOOL_USAGE : tool_check_sources(o, "encode");
}

static int
encode(const struct tool_options *o, struct tool_devices *devices)
{
    qv_error err = { 0 };
    struct tool_list list = { 0 };
    qv_status status =
        o->list ? tool_list_read(o->list, &list, &err)
                : tool_list_of_paths(o->arguments, o->n_arguments, o->recursive, true, &list, &err);
    const size_t n = list.n;
    struct tool_output *outputs = calloc(n + 1, sizeof *outputs);
    char **paths = calloc(n + 1, sizeof *paths);
    char *inside = qv_path_join(o->output, "");
    const bool folder = is_folder(o, &list);
    if (!status)
        status = outputs && paths && inside
                     ? name_outputs(o, &list, folder ? inside : NULL, paths, outputs, &err)
                     : qv_fail(&err, QV_ENOMEM, "no memory for the names of %zu outputs", n);
    if (!status && folder)
        status = make_output_folder(o->output, inside, &err);
    if (!status)
        status = tool_devices_open(o, (int64_t)n, devices, &err);
    struct tool_encoder e = { .o = o,
                              .context = &devices->infos[0],
                              .load_s = devices->load_s,
                              .many = n > 1 || o->list,
                              .outputs = outputs,
                              .n = n,
                              .lock = PTHREAD_MUTEX_INITIALIZER,
                              .makes_folders = folder };
    const int code = status ? tool_fail(status, &err) : encode_with(&e, devices, &err);
    for (size_t i = 0; paths && i < n; i++)
        free(paths[i]);
    free(outputs);
    free(paths);
    free(inside);
    tool_list_free(&list);
    return code;
}

int
tool_encode(const struct tool_options *o)
{
    struct tool_devices devices = { .n = 0 };
    int code = check_usage(o);
    if (!code)
        code = encode(o, &devices);
    tool_devices_close(&devices);
    tool_signals_obey();
    return code;
}
