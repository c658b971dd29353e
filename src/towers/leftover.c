/* SPDX-License-Identifier: MIT */
/* The tensors of a checkpoint that its tower does not read. */
#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "stored_tensor.h"

struct looking {
    const struct qv_stored_tower *in;
    struct qv_text scratch, other;
    struct qv_leftover *out;
};

/* Returns whether the tower reads the tensor `name`, which is `own` below the prefix. The tensor
 * may contain the scales or biases of a quantised matrix. */
static bool
is_used(struct looking *l, const char *name, const char *own)
{
    static const char *const others[] = { "scales", "biases" };
    const struct qv_stored_name *found = qv_stored_own(l->in, own);
    const size_t n = strlen(own);
    for (size_t i = 0; i < 2 && !found; i++) {
        const size_t m = strlen(others[i]);
        if (n <= m || strcmp(own + n - m, others[i]) != 0)
            continue;
        l->other.n = 0;
        qv_text_add(&l->other, own, n - m);
        qv_text_add(&l->other, "weight", sizeof "weight");
        found = l->other.lost ? NULL : qv_stored_own(l->in, l->other.at);
        return found != NULL;
    }
    return found && found->in_file == name;
}

static void
see(void *user, const char *name)
{
    struct looking *l = user;
    struct qv_leftover *out = l->out;
    const char *own = qv_stored_below(l->in, name, &l->scratch);
    if (!own) {
        out->of_others++;
        return;
    }
    if (is_used(l, name, own))
        return;
    if (out->of_tower < QV_LEFTOVER_NAMES)
        snprintf(out->names[out->of_tower], sizeof out->names[0], "%.95s", own);
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

/* Counts and names the unread tensors. In a GGUF file a vision tower's names begin with "v." or
 * "mm.", an audio tower's with "a.". */
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
    struct looking l = { .in = &in, .out = out };
    *out = (struct qv_leftover){ 0 };
    qv_status status = qv_stored_tower_open(dir, config, tower, &in, err);
    if (!status && in.gguf)
        status = look_through(&in, config, tower, out, err);
    else if (!status)
        qv_checkpoint_visit(in.checkpoint, see, &l);
    if (l.scratch.lost || l.other.lost)
        status = qv_no_memory(dir, err);
    free(l.scratch.at);
    free(l.other.at);
    qv_stored_tower_close(&in);
    return status;
}
