/* SPDX-License-Identifier: MIT */
/* Decides which chunks frame pairs go to, and which of those that wait go into the next chunk. */
#include "packer.h"

#include <string.h>

#include "capacity.h"

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

size_t
qv_pack_choose(const qv_capacity *chunk, const qv_pack_run *waiting, size_t n,
               int64_t taken[QV_PACK_ITEMS])
{
    qv_capacity left = *chunk;
    size_t used = 0;
    n = n < QV_PACK_ITEMS ? n : QV_PACK_ITEMS;
    memset(taken, 0, QV_PACK_ITEMS * sizeof *taken);
    for (size_t best = 0; best < n; used++) {
        const qv_pack_run *run = &waiting[best];
        const int64_t fit = qv_capacity_fits(&left, &run->pair);
        taken[best] = fit < run->pairs ? fit : run->pairs;
        left.rows -= taken[best] * run->pair.rows;
        left.segments -= taken[best] * run->pair.segments;
        left.windows -= taken[best] * run->pair.windows;
        best = n;
        for (size_t i = 0; i < n; i++)
            if (!taken[i] && qv_capacity_fits(&left, &waiting[i].pair) &&
                (best == n || waiting[i].pair.rows > waiting[best].pair.rows))
                best = i;
    }
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
