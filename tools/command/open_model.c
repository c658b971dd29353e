/* SPDX-License-Identifier: MIT */
/* Opens the device and the model named by the options, and prints their warnings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "tool.h"

/* Returns $XDG_CACHE_HOME/qwenvit/kernels or ~/.cache/qwenvit/kernels; NULL if there is no home
 * folder. */
static const char *
kernel_folder(char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (cache && *cache == '/')
        n = snprintf(path, size, "%s/qwenvit/kernels", cache);
    else if (home && *home == '/')
        n = snprintf(path, size, "%s/.cache/qwenvit/kernels", home);
    return n > 0 && (size_t)n < size ? path : NULL;
}

const char *
tool_decoder_program(void)
{
    const char *program = getenv("QWENVIT_DECODER");
    return program && *program ? program : NULL;
}

qv_status
tool_open_context(const struct tool_options *o, int64_t device, qv_context **out,
                  qv_context_info *info, qv_error *err)
{
    char folder[4096];
    const char *backends = getenv("QWENVIT_BACKENDS");
    qv_context_options c = { .backend = o->backend,
                             .device = (int)(device < 1 << 20 ? device : 1 << 20),
                             .threads = (int)(o->threads < 1 << 20 ? o->threads : 1 << 20),
                             .tf32 = o->tf32,
                             .naive = o->naive,
                             .backends = backends && *backends ? backends : NULL,
                             .kernel_folder = kernel_folder(folder, sizeof folder) };
    qv_status status = qv_context_open(&c, out, err);
    if (!status) {
        qv_context_get_info(*out, info);
        if (*info->warning)
            tool_complain("%s", info->warning);
    }
    return status;
}

void
tool_close_context(qv_context **ctx, const qv_context_info *opened)
{
    qv_context_info now;
    if (*ctx) {
        qv_context_get_info(*ctx, &now);
        if (strcmp(now.warning, opened->warning))
            tool_complain("%s", now.warning);
    }
    qv_context_close(ctx);
}

qv_status
tool_load_model(const struct tool_options *o, qv_context *ctx, const char *dir, bool describe,
                qv_model **out, qv_model_info *info, qv_error *err)
{
    static char said[1024]; /* several devices' models have the same warning: print it once */
    const qv_model_options options = { .dtype = o->dtype,
                                       .describe = describe,
                                       .image_mean = tool_three(&o->image_mean),
                                       .image_std = tool_three(&o->image_std) };
    const qv_status status = qv_model_load(ctx, dir, &options, out, err);
    if (!status) {
        qv_model_get_info(*out, info);
        if (*info->warning && strncmp(said, info->warning, sizeof said - 1) != 0) {
            snprintf(said, sizeof said, "%s", info->warning);
            tool_complain("%s", info->warning);
        }
    }
    return status;
}
