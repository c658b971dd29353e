/* SPDX-License-Identifier: MIT */
#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "stored_tensor.h"

/* The names that the tower reads, without its prefix, sorted. */
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
    used->names = calloc(tower->n * QV_MOST_STORED, sizeof *used->names);
    if (!used->names)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu names", tower->n * QV_MOST_STORED);
    for (size_t i = 0; i < tower->n; i++)
        for (int stored = 0; stored < tower->tensors[i].n_stored; stored++)
            used->names[used->n++] = tower->tensors[i].names[stored];
    qsort(used->names, used->n, sizeof *used->names, by_name);
    return QV_OK;
}

static bool
has(const struct used *used, const char *name)
{
    return bsearch(&name, used->names, used->n, sizeof *used->names, by_name) != NULL;
}

/* Returns whether the tower reads a tensor of that name. The name may also be the patch embedding's
 * other name, or the name of a quantised matrix's scales or biases. */
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

/* ---- of a GGUF file -------------------------------------------------------------------------- */

/* Marks each tensor of the GGUF file that a tower's tensor is made from. */
static qv_status
mark_used(const struct qv_stored_tower *in, const struct qv_config *config,
          const struct qv_tower *tower, bool *used, qv_error *err)
{
    const struct qv_gguf_tensor *first = qv_gguf_at(in->gguf, 0);
    for (size_t id = 0; id < tower->n; id++)
        for (int i = 0; i < tower->tensors[id].n_stored; i++) {
            struct qv_stored_tensor stored = { 0 };
            const qv_status status =
                qv_stored_find(in, config, &tower->tensors[id], i, &stored, err);
            if (status)
                return status;
            for (int p = 0; p < stored.n_pieces; p++)
                used[stored.pieces[p].tensor - first] = true;
        }
    return QV_OK;
}

/* Counts and names the tensors that are not read. In a GGUF file a vision tower's names begin
 * with "v." or "mm.", an audio tower's with "a.". */
static qv_status
look_through(const struct qv_stored_tower *in, const struct qv_config *config,
             const struct qv_tower *tower, struct qv_leftover *out, qv_error *err)
{
    const size_t n = qv_gguf_count(in->gguf);
    bool *used = calloc(n + 1, sizeof *used);
    if (!used)
        return qv_fail(err, QV_ENOMEM, "no memory for %zu tensors", n);
    const qv_status status = mark_used(in, config, tower, used, err);
    for (size_t i = 0; i < n && !status; i++) {
        const char *name = qv_gguf_at(in->gguf, i)->name;
        const bool vision =
            !strncmp(name, "v.", 2) || (!strncmp(name, "mm.", 3) && strncmp(name, "mm.a.", 5) != 0);
        if (!used[i] && vision && out->of_tower < QV_LEFTOVER_NAMES)
            snprintf(out->names[out->of_tower], sizeof out->names[0], "%.95s", name);
        out->of_tower += !used[i] && vision;
        out->of_others += !vision;
    }
    free(used);
    return status;
}

qv_status
qv_leftover_find(const char *dir, const struct qv_config *config, const struct qv_tower *tower,
                 struct qv_leftover *out, qv_error *err)
{
    struct qv_stored_tower in;
    struct used used = { .out = out };
    *out = (struct qv_leftover){ 0 };
    qv_status status =
        qv_stored_tower_open(dir, &tower->tensors[tower->patch_embed.weight], &in, err);
    out->prefix = in.prefix;
    if (!status && in.gguf)
        status = look_through(&in, config, tower, out, err);
    else if (!status && !(status = list_names(tower, &used, err)))
        qv_checkpoint_visit(in.checkpoint, see, &used);
    free(used.names);
    qv_stored_tower_close(&in);
    return status;
}
