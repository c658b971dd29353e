/* SPDX-License-Identifier: MIT */
#include "context.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "error.h"

static qv_status
no_backend(const char *name, const char *folder, qv_error *err)
{
    static const char *const known[] = { "cpu", "cuda", "metal", "ref" };
    char here[64] = "";
    for (const struct qv_backend *const *b = qv_backends; *b; b++)
        if (qv_backend_is_installed(*b, folder))
            qv_list_name(here, sizeof here, (*b)->name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i]))
            return qv_fail(err, QV_ENODEVICE, "backend %s is not in this build (available: %s)",
                           name, here);
    return qv_fail(err, QV_ENODEVICE, "unknown backend \"%s\" (available: %s)", name, here);
}

/* Splits a name such as "cuda:1". */
static qv_status
take_index(const char *given, char name[16], int *index, qv_error *err)
{
    const size_t n = strcspn(given, ":");
    char *end;
    snprintf(name, 16, "%.*s", (int)n, given);
    if (!given[n])
        return QV_OK;
    const long number = strtol(given + n + 1, &end, 10);
    if (given[n + 1] < '0' || given[n + 1] > '9' || *end || number > INT_MAX)
        return qv_fail(err, QV_EINVAL,
                       "backend is \"%s\"; it must be a name, or a name with an index: cuda:1",
                       given);
    if (*index && *index != number)
        return qv_fail(err, QV_EINVAL,
                       "backend is \"%s\" and device is %d: give only one, or make them agree",
                       given, *index);
    *index = (int)number;
    return QV_OK;
}

/* Records why a preferred backend was passed over. */
static void
pass_over(qv_context *ctx, const char *name, const char *why)
{
    size_t used = strlen(ctx->passed_over);
    snprintf(ctx->passed_over + used, sizeof ctx->passed_over - used, "%s%s: %s", used ? "; " : "",
             name, why);
}

qv_status
qv_context_open(const qv_context_options *options, qv_context **out, qv_error *err)
{
    QV_NEED(err, out);
    static const qv_context_options defaults;
    const qv_context_options *o = options ? options : &defaults;
    char name[16];
    int index = o->device;
    qv_status status = take_index(o->backend ? o->backend : "auto", name, &index, err);
    if (status)
        return status;
    bool automatic = !strcmp(name, "auto");
    const struct qv_backend *only = automatic ? NULL : qv_backend_find(name);
    if (!automatic && !only)
        return no_backend(name, o->backends, err);
    struct qv_device_options device = {
        index, o->threads, o->tf32, o->stream, 0, o->backends, NULL
    };
    status = qv_op_parse_kinds(o->naive, &device.naive, err);
    if (status)
        return status;
    qv_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return qv_fail(err, QV_ENOMEM, "no memory for a context");
    ctx->plan_cache =
        (struct qv_plan_cache){ &ctx->kernel_files, qv_kernel_files_find, qv_kernel_files_keep };
    device.plan_cache = o->kernel_folder ? &ctx->plan_cache : NULL;
    status = QV_ENODEVICE;
    qv_error failure = { 0 };
    for (const struct qv_backend *const *b = qv_backends; *b && status == QV_ENODEVICE; b++) {
        if (only && *b != only)
            continue;
        status = (*b)->open(&device, &ctx->dev, &failure);
        if (status)
            pass_over(ctx, (*b)->name, failure.text);
    }
    if (status) {
        if (automatic && status == QV_ENODEVICE)
            qv_fail(err, status, "no backend has a device %d: %s", index, ctx->passed_over);
        else
            qv_fail(err, status, "%s", failure.text);
        free(ctx);
        return status;
    }
    pthread_mutex_init(&ctx->turns.lock, NULL);
    pthread_cond_init(&ctx->turns.changed, NULL);
    qv_locked_pages_open(&ctx->locked_pages);
    ctx->backend = ctx->dev->backend; /* differs from *b if that loaded a library */
    ctx->backend->caps(ctx->dev, &ctx->caps);
    if (!ctx->caps.pack_rows)
        ctx->caps.pack_rows = ctx->caps.chunk_rows;
    ctx->threads = ctx->caps.threads > 1 ? 1 : o->threads > 0 ? o->threads : qv_usable_cores();
    ctx->device = index;
    ctx->in_order = o->stream != NULL;
    if (device.naive && !ctx->caps.has_naive)
        status =
            qv_fail(err, QV_EINVAL, "naive: backend %s has no naive kernels", ctx->backend->name);
    if (!status)
        status = qv_kernel_files_open(&ctx->kernel_files, o->kernel_folder, ctx->backend->name,
                                      &ctx->caps, err);
    if (status)
        qv_context_close(&ctx);
    else
        *out = ctx;
    return status;
}

void
qv_context_close(qv_context **ctx)
{
    if (!ctx || !*ctx)
        return;
    qv_kernels_free(*ctx);
    qv_locked_pages_close(&(*ctx)->locked_pages, (*ctx)->dev);
    (*ctx)->backend->close((*ctx)->dev);
    qv_kernel_files_close(&(*ctx)->kernel_files);
    pthread_cond_destroy(&(*ctx)->turns.changed);
    pthread_mutex_destroy(&(*ctx)->turns.lock);
    free(*ctx);
    *ctx = NULL;
}

void
qv_context_get_info(const qv_context *ctx, qv_context_info *out)
{
    QV_NEED_OR(, ctx, out);
    *out = (qv_context_info){ .backend = ctx->backend->name,
                              .threads = ctx->caps.threads,
                              .dtype = ctx->caps.dtype };
    memcpy(out->device, ctx->caps.device, sizeof out->device);
    memcpy(out->dtype_reason, ctx->caps.dtype_reason, sizeof out->dtype_reason);
    memcpy(out->passed_over, ctx->passed_over, sizeof out->passed_over);
    struct qv_caps now; /* problems may have occurred since the context was opened */
    char kernel_files[sizeof ctx->kernel_files.warning];
    ctx->backend->caps(ctx->dev, &now);
    qv_kernel_files_warning(&ctx->kernel_files, kernel_files, sizeof kernel_files);
    const char *const warnings[] = { now.warning, kernel_files };
    for (size_t i = 0, used = 0; i < sizeof warnings / sizeof *warnings; i++)
        if (*warnings[i] && used < sizeof out->warning)
            used += (size_t)snprintf(out->warning + used, sizeof out->warning - used, "%s%s",
                                     used ? "; " : "", warnings[i]);
}

/* ---- turns ----------------------------------------------------------------------------------- */

void
qv_turn_take(qv_context *ctx)
{
    struct qv_turns *t = &ctx->turns;
    pthread_mutex_lock(&t->lock);
    const uint64_t mine = t->asked++;
    while (t->ended != mine)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void
qv_turn_end(qv_context *ctx)
{
    struct qv_turns *t = &ctx->turns;
    pthread_mutex_lock(&t->lock);
    t->ended++;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

bool
qv_turn_is_wanted(qv_context *ctx)
{
    struct qv_turns *t = &ctx->turns;
    pthread_mutex_lock(&t->lock);
    const bool wanted = t->asked > t->ended + 1;
    pthread_mutex_unlock(&t->lock);
    return wanted;
}

/* ---- memory for the caller ------------------------------------------------------------------- */

qv_status
qv_host_alloc(qv_context *ctx, size_t bytes, void **out, qv_error *err)
{
    QV_NEED(err, ctx, out);
    if (!bytes)
        return qv_fail(err, QV_EINVAL, "0 bytes requested; at least 1 is needed");
    return ctx->backend->lock_pages
               ? qv_locked_pages_take(&ctx->locked_pages, ctx->dev, bytes, out, err)
               : qv_host_alloc_pages(bytes, out, err);
}

void
qv_host_free(qv_context *ctx, void *p)
{
    QV_NEED_OR(, ctx, p);
    if (ctx->backend->unlock_pages)
        qv_locked_pages_give(&ctx->locked_pages, ctx->dev, p);
    else
        free(p);
}
