/* SPDX-License-Identifier: MIT */
#include "leftover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "part.h"

/* Names that the tower looks for, below its prefix; sorted. */
struct used {
    const char **names;
    size_t n;
    struct qv_leftover *out;
};

static int
by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static qv_status
list_names(const struct qv_tower *tower, struct used *used, qv_error *err)
{
    used->names = calloc(tower->n * QV_MOST_PARTS, sizeof *used->names);
    if (!used->names)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu names", tower->n * QV_MOST_PARTS);
    for (size_t i = 0; i < tower->n; i++)
        for (int part = 0; part < tower->tensors[i].n_parts; part++)
            used->names[used->n++] = tower->tensors[i].names[part];
    qsort(used->names, used->n, sizeof *used->names, by_name);
    return QV_OK;
}

static bool
has(const struct used *used, const char *name)
{
    return bsearch(&name, used->names, used->n, sizeof *used->names, by_name) != NULL;
}

/* Whether the tower uses a tensor of that name, which may also be the patch embedding's other name,
 * or that of a quantised matrix's scales or biases. */
static bool
is_used(const struct used *used, const char *name)
{
    static const struct {
        const char *from, *to;
    } others[] = { { "linear_proj", "proj" }, { "scales", "weight" }, { "biases", "weight" } };
    if (has(used, name))
        return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *at = strstr(name, others[i].from);
        char as[160];
        if (!at)
            continue;
        snprintf(as, sizeof as, "%.*s%s%s", (int)(at - name), name, others[i].to,
                 at + strlen(others[i].from));
        if (has(used, as))
            return true;
    }
    return false;
}

static void
see(void *user, const char *name)
{
    const struct used *used = user;
    struct qv_leftover *out = used->out;
    const size_t prefix = strlen(out->prefix);
    if (strncmp(name, out->prefix, prefix) != 0) {
        out->of_others++;
        return;
    }
    if (is_used(used, name + prefix))
        return;
    if (out->of_tower < QV_LEFTOVER_NAMES)
        snprintf(out->names[out->of_tower], sizeof out->names[0], "%s", name + prefix);
    out->of_tower++;
}

qv_status
qv_leftover_find(const char *dir, const struct qv_tower *tower, struct qv_leftover *out,
                 qv_error *err)
{
    struct qv_stored_tower in = { .dir = dir };
    struct used used = { .out = out };
    *out = (struct qv_leftover){ 0 };
    qv_status status = qv_checkpoint_open(dir, &in.checkpoint, err);
    if (!status)
        status = qv_part_find_prefix(&in, &tower->tensors[tower->patch_embed.weight], err);
    out->prefix = in.prefix;
    if (!status)
        status = list_names(tower, &used, err);
    if (!status)
        qv_checkpoint_visit(in.checkpoint, see, &used);
    free(used.names);
    qv_checkpoint_close(&in.checkpoint);
    return status;
}
