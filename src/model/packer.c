/* SPDX-License-Identifier: MIT */
/* Decides which chunks frame pairs go to, and which of those that wait go into the next chunk. */
#include "packer.h"

#include <string.h>

#include "capacity.h"

/* If no more than this part of a chunk (1/128) is left empty, nothing better is looked for. */
enum { WORTH_A_SEARCH = 128 };

qv_capacity
qv_item_size(const qv_model *model, const int64_t grid_thw[3])
{
    return qv_capacity_of(&model->config, grid_thw);
}

int64_t
qv_model_pack_rows(const qv_model *model, int64_t rows)
{
    return qv_capacity_pack(&model->ctx->caps, &model->config, rows).rows;
}

struct qv_capacity_bits
qv_model_bits(const qv_model *model)
{
    const struct qv_config *c = &model->config;
    return qv_capacity_bits(&model->ctx->caps, model->dtype, c->merge, qv_config_head_dim(c));
}

qv_capacity
qv_pack_capacity(const qv_model *model, int64_t rows, const int64_t grid_thw[3])
{
    const struct qv_capacity_bits bits = qv_model_bits(model);
    const qv_capacity pair = qv_item_size(model, (int64_t[3]){ 1, grid_thw[1], grid_thw[2] });
    return qv_capacity_for_pairs(&model->ctx->caps, &model->config, &bits, rows, &pair);
}

qv_capacity
qv_pack_part(const qv_model *model, const qv_capacity *chunk, const qv_capacity *used, bool more,
             int64_t repeats)
{
    const struct qv_capacity_bits bits = qv_model_bits(model);
    return qv_capacity_for_chunk(&model->ctx->caps, &model->config, bits.by_place ? NULL : &bits,
                                 chunk, used, more, repeats);
}

static void
take_out(qv_capacity *left, const qv_capacity *pair, int64_t n)
{
    left->rows -= n * pair->rows;
    left->segments -= n * pair->segments;
    left->windows -= n * pair->windows;
}

/* Takes as many of the oldest pairs as fit, then of the largest that still fit. Returns the room
 * that is left in the chunk. */
static qv_capacity
take_largest(const qv_capacity *chunk, const qv_pack_run *waiting, size_t n,
             int64_t taken[QV_PACK_ITEMS])
{
    qv_capacity left = *chunk;
    for (size_t best = 0; best < n;) {
        const qv_pack_run *run = &waiting[best];
        const int64_t fit = qv_capacity_fits(&left, &run->pair);
        taken[best] = fit < run->pairs ? fit : run->pairs;
        take_out(&left, &run->pair, taken[best]);
        best = n;
        for (size_t i = 0; i < n; i++)
            if (!taken[i] && qv_capacity_fits(&left, &waiting[i].pair) &&
                (best == n || waiting[i].pair.rows > waiting[best].pair.rows))
                best = i;
    }
    return left;
}

/* Sums of rows, in grains of so many that MOST_SUMS are a chunk: how each is reached. */
enum { MOST_SUMS = 4096, NO_RUN = -1 };
struct sums {
    int64_t grain, most;
    int16_t last[MOST_SUMS + 1]; /* run of which one is added last; NO_RUN: it is not reached */
    int16_t n[MOST_SUMS + 1];    /* of that run in the sum */
};

static int64_t
grains_of(const struct sums *s, const qv_pack_run *run)
{
    return (run->pair.rows + s->grain - 1) / s->grain;
}

/* Finds the sums of rows that the pairs of all runs but the first can make, up to pairs[run] of
 * each. pairs[run] is 0 for a run that is like an older one. Returns the largest sum. */
static int64_t
find_sums(struct sums *s, const qv_pack_run *waiting, const int64_t *pairs, size_t n)
{
    int64_t best = 0;
    for (int64_t at = 1; at <= s->most; at++)
        s->last[at] = NO_RUN;
    s->last[0] = 0;
    for (size_t i = 1; i < n && best < s->most; i++) {
        const int64_t grains = grains_of(s, &waiting[i]);
        for (int64_t at = grains; pairs[i] && at <= s->most; at++) {
            const int64_t from = at - grains;
            const int before = s->last[from] == (int16_t)i ? s->n[from] : 0;
            if (s->last[at] != NO_RUN || s->last[from] == NO_RUN || before == pairs[i])
                continue;
            s->last[at] = (int16_t)i;
            s->n[at] = (int16_t)(before + 1);
            best = at > best ? at : best;
        }
    }
    return best;
}

/* Fills what the oldest pairs leave of the chunk with the pairs that leave least of it empty, if
 * these leave less than `rows` empty and the chunk has room for their segments. Of two runs that
 * are alike the older is taken. */
static void
take_best(const qv_capacity *chunk, const qv_pack_run *waiting, size_t n, int64_t rows,
          int64_t taken[QV_PACK_ITEMS])
{
    struct sums s;
    int64_t pairs[QV_PACK_ITEMS] = { 0 };
    size_t like[QV_PACK_ITEMS]; /* the oldest that each run is like */
    qv_capacity left = *chunk;
    take_out(&left, &waiting[0].pair, taken[0]);
    s.grain = left.rows / (MOST_SUMS + 1) + 1;
    s.most = left.rows / s.grain;
    for (size_t i = 1; i < n; i++) {
        for (like[i] = 1; !qv_capacity_equal(&waiting[like[i]].pair, &waiting[i].pair);)
            like[i]++;
        const int64_t all = pairs[like[i]] + waiting[i].pairs;
        pairs[like[i]] = all < s.most ? all : s.most;
    }
    int64_t at = find_sums(&s, waiting, pairs, n);
    memset(pairs, 0, sizeof pairs);
    for (; at; at -= grains_of(&s, &waiting[s.last[at]])) {
        take_out(&left, &waiting[s.last[at]].pair, 1);
        pairs[s.last[at]]++;
    }
    if (left.rows >= rows || left.segments < 0 || left.windows < 0)
        return;
    for (size_t i = 1; i < n; i++) {
        taken[i] = pairs[like[i]] < waiting[i].pairs ? pairs[like[i]] : waiting[i].pairs;
        pairs[like[i]] -= taken[i];
    }
}

size_t
qv_pack_choose(const qv_capacity *chunk, const qv_pack_run *waiting, size_t n,
               int64_t taken[QV_PACK_ITEMS])
{
    size_t used = 0;
    n = n < QV_PACK_ITEMS ? n : QV_PACK_ITEMS;
    memset(taken, 0, QV_PACK_ITEMS * sizeof *taken);
    const qv_capacity left = take_largest(chunk, waiting, n, taken);
    if (n > 1 && left.rows > chunk->rows / WORTH_A_SEARCH)
        take_best(chunk, waiting, n, left.rows, taken);
    for (size_t i = 0; i < n; i++)
        used += taken[i] > 0;
    return used;
}

bool
qv_packer_add(struct qv_packer *p, size_t item, const qv_capacity *pair, int64_t pairs)
{
    if (p->n == QV_PACK_ITEMS)
        return false;
    p->runs[p->n] = (qv_pack_run){ *pair, pairs };
    p->pieces[p->n++] = (struct qv_pack_piece){ item, 0, pairs };
    return true;
}

size_t
qv_packer_next(struct qv_packer *p, const qv_capacity *chunk,
               struct qv_pack_piece pieces[QV_PACK_ITEMS])
{
    int64_t taken[QV_PACK_ITEMS];
    size_t used = 0, left = 0;
    qv_pack_choose(chunk, p->runs, p->n, taken);
    for (size_t i = 0; i < p->n; i++) {
        const struct qv_pack_piece from = p->pieces[i];
        if (taken[i])
            pieces[used++] = (struct qv_pack_piece){ from.item, from.first, taken[i] };
        if (taken[i] == from.n)
            continue;
        p->pieces[left] =
            (struct qv_pack_piece){ from.item, from.first + taken[i], from.n - taken[i] };
        p->runs[left++] = (qv_pack_run){ p->runs[i].pair, from.n - taken[i] };
    }
    p->n = left;
    return used;
}
