/* SPDX-License-Identifier: MIT */
/* In place of `qwenvit bench cache` in a build that has no caches. */
#include "bench.h"
#include "error.h"

const bool bench_has_cache = false;

static qv_status
refuse(qv_error *err)
{
    return qv_fail(err, QV_EUNSUPPORTED, "this build has no caches");
}

qv_status
bench_cache_start(const char *folder, const qv_model_info *model, qv_dtype dtype,
                  struct qv_cache_writer **writer, qv_error *err)
{
    (void)folder;
    (void)model;
    (void)dtype;
    (void)writer;
    return refuse(err);
}

qv_status
bench_cache_put(struct qv_cache_writer *writer, const char *key, const qv_tokens *tokens,
                qv_error *err)
{
    (void)writer;
    (void)key;
    (void)tokens;
    return refuse(err);
}

qv_status
bench_cache_end(struct qv_cache_writer **writer, qv_error *err)
{
    (void)writer;
    return refuse(err);
}

int
bench_cache(const struct tool_options *o)
{
    return tool_cache(o); /* which says so */
}
