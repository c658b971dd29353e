/* SPDX-License-Identifier: MIT */
/* Finds the tower among a checkpoint's names. */
#include "stored_tensor.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "grow.h"
#include "read_config.h"

/* A tensor whose name ends in one of the family's names. */
struct entry {
    const char *prefix, *in_file;
    size_t prefix_at; /* the prefix's place in struct search's text */
    struct qv_stored_name *own;
};

struct search {
    struct qv_stored_tower *in;
    struct qv_text scratch;
    struct entry *entries;
    size_t n, room;
    bool lost; /* out of memory */
};

static void
see_own(void *user, const char *name)
{
    struct search *s = user;
    const char *plain = s->lost ? NULL : qv_stored_plain_name(name, &s->scratch);
    const char *own = plain ? qv_stored_own_part(s->in, plain, true) : NULL;
    s->lost |= s->scratch.lost;
    if (!own)
        return;
    struct entry *grown = qv_grown(s->entries, s->n, &s->room, sizeof *grown);
    s->lost |= !grown;
    if (!grown)
        return;
    s->entries = grown;
    grown[s->n++] = (struct entry){ .in_file = name,
                                    .prefix_at = s->in->prefixes.n,
                                    .own = qv_stored_own(s->in, own) };
    qv_text_add(&s->in->prefixes, plain, (size_t)(own - plain));
    qv_text_add(&s->in->prefixes, "", 1);
    s->lost |= s->in->prefixes.lost;
}

static int
by_prefix(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const int order = strcmp(x->prefix, y->prefix);
    if (order || x->own != y->own)
        return order ? order : x->own < y->own ? -1 : 1;
    return strcmp(x->in_file, y->in_file);
}

/* The entries below one prefix. */
struct group {
    const struct entry *first, *end;
    size_t n_own; /* how many of the family's names it has; 0: the patch embedding is missing */
};

static struct group
next_group(const struct search *s, const struct entry *first, const char *patch_embed)
{
    struct group g = { first, first, 0 };
    bool embeds = false;
    for (; g.end < s->entries + s->n && !strcmp(g.end->prefix, first->prefix); g.end++) {
        g.n_own += g.end == first || g.end->own != g.end[-1].own;
        embeds |= !strcmp(g.end->own->name, patch_embed);
    }
    g.n_own = embeds ? g.n_own : 0;
    return g;
}

/* Reads all values of a stored tensor's rows [row, row + rows) as f32. */
static qv_status
read_widened(const struct qv_stored_tensor *t, int64_t row, int64_t rows,
             const struct qv_stored_room *room, float *out, qv_error *err)
{
    void *values;
    const qv_status status = qv_stored_read(t, row, rows, room, &values, err);
    if (!status)
        qv_convert(values, t->dtype, out, QV_F32, rows * t->k);
    return status;
}

/* Compares two stored tensors of the same shape. */
static qv_status
compare_values(const struct qv_stored_tensor *a, const struct qv_stored_tensor *b, int64_t rows,
               bool *same, qv_error *err)
{
    const size_t a_row = qv_stored_row_bytes(a), b_row = qv_stored_row_bytes(b);
    const size_t row_bytes = a_row > b_row ? a_row : b_row, values = (size_t)a->k * sizeof(float);
    const int64_t fit = (1 << 20) / (int64_t)(row_bytes + values), step = fit ? fit : 1;
    const size_t bytes = (size_t)step * row_bytes;
    char *raw = malloc(2 * bytes);
    float *x = malloc(2 * (size_t)step * values), *y = x ? x + step * a->k : NULL;
    qv_status status =
        raw && x ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for rows of %zu bytes", bytes);
    const struct qv_stored_room room = { raw, raw ? raw + bytes : NULL, bytes };
    *same = true;
    for (int64_t row = 0; row < rows && *same && !status; row += step) {
        const int64_t n = rows - row < step ? rows - row : step;
        status = read_widened(a, row, n, &room, x, err);
        if (!status)
            status = read_widened(b, row, n, &room, y, err);
        *same = !status && !memcmp(x, y, (size_t)n * values);
    }
    free(raw);
    free(x);
    return status;
}

/* Compares a name's tensor with another tensor of the same name, which also counts as different if
 * it cannot be the tower's. */
static qv_status
compare_tensors(struct qv_stored_tower *in, const struct qv_config *config, const struct entry *e,
                bool *same, qv_error *err)
{
    struct qv_stored_tensor a, b;
    struct qv_stored_name *own = e->own;
    const char *const chosen = own->in_file;
    qv_status status = qv_stored_find(in, config, own->spec, own->i, &a, err);
    if (status)
        return status;
    own->in_file = e->in_file;
    status = qv_stored_find(in, config, own->spec, own->i, &b, err);
    own->in_file = chosen;
    *same = false;
    if (status)
        return status == QV_EFORMAT || status == QV_EUNSUPPORTED ? QV_OK : status;
    return compare_values(&a, &b, own->spec->n, same, err);
}

/* Checks that all complete towers have the same values. */
static qv_status
compare_towers(const struct search *s, const struct qv_config *config, const char *patch_embed,
               qv_error *err)
{
    qv_status status = QV_OK;
    struct group g = { 0 };
    for (const struct entry *at = s->entries; at < s->entries + s->n; at = g.end) {
        g = next_group(s, at, patch_embed);
        for (const struct entry *e = g.first; e < g.end && g.n_own == s->in->n_names; e++) {
            bool same = true;
            if (e->in_file != e->own->in_file)
                status = compare_tensors(s->in, config, e, &same, err);
            if (!status && !same)
                status = qv_fail(err, QV_EFORMAT,
                                 "%s: there are two vision towers with different values, %.200s "
                                 "and %.200s: save the checkpoint with only one of them",
                                 s->in->dir, e->own->in_file, e->in_file);
            if (status)
                return status;
        }
    }
    return QV_OK;
}

/* Chooses the prefix with most of the family's names. */
static qv_status
choose(const struct search *s, const struct qv_config *config, const char *patch_embed,
       qv_error *err)
{
    struct group best = { 0 }, g;
    for (const struct entry *at = s->entries; at < s->entries + s->n; at = g.end) {
        g = next_group(s, at, patch_embed);
        best = g.n_own > best.n_own ? g : best;
    }
    if (!best.n_own)
        return qv_stored_missing(s->in, NULL, patch_embed, err);
    s->in->prefix = best.first->prefix;
    for (const struct entry *e = best.end; e-- > best.first;) /* the first of several is used */
        e->own->in_file = e->in_file;
    return compare_towers(s, config, patch_embed, err);
}

static qv_status
find_names(struct qv_stored_tower *in, const struct qv_config *config, const struct qv_tower *tower,
           qv_error *err)
{
    const char *patch_embed = tower->tensors[tower->patch_embed.weight].names[0];
    struct search s = { .in = in };
    qv_status status = qv_stored_list_names(in, tower, err);
    if (status)
        return status;
    qv_checkpoint_visit(in->checkpoint, see_own, &s);
    for (size_t i = 0; i < s.n && !s.lost; i++)
        s.entries[i].prefix = in->prefixes.at + s.entries[i].prefix_at;
    if (s.lost) {
        status = qv_no_memory(in->dir, err);
    } else {
        if (s.n)
            qsort(s.entries, s.n, sizeof *s.entries, by_prefix);
        status = choose(&s, config, patch_embed, err);
    }
    free(s.entries);
    free(s.scratch.at);
    return status;
}

qv_status
qv_stored_tower_open(const char *path, const struct qv_config *config, const struct qv_tower *tower,
                     struct qv_stored_tower *out, qv_error *err)
{
    char *file = NULL;
    *out = (struct qv_stored_tower){ .dir = path, .prefix = "" };
    qv_status status = qv_mmproj_find(path, &file, err);
    if (!status && file)
        status = qv_gguf_open(file, &out->gguf, err);
    else if (!status)
        status = qv_checkpoint_open(path, &out->checkpoint, err);
    if (!status && out->checkpoint)
        status = find_names(out, config, tower, err);
    free(file);
    return status;
}

void
qv_stored_tower_close(struct qv_stored_tower *in)
{
    qv_checkpoint_close(&in->checkpoint);
    qv_gguf_close(&in->gguf);
    free(in->names);
    free(in->prefixes.at);
}
