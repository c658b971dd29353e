/* SPDX-License-Identifier: MIT */
/* Which items are packed, into which chunks, and which of them go into the next. */
#include "capacity.h"
#include "model.h"

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

qv_capacity
qv_pack_item(const qv_model *model, int64_t rows)
{
    return qv_capacity_pack_item(&model->ctx->caps, &model->config, rows);
}

qv_capacity
qv_pack_part(const qv_model *model, const qv_capacity *chunk, const qv_capacity *used)
{
    const struct qv_config *c = &model->config;
    const struct qv_caps *caps = &model->ctx->caps;
    const struct qv_capacity_bits bits =
        qv_capacity_bits(caps, model->dtype, c->merge, qv_config_head_dim(c));
    return caps->quick_plans
               ? qv_capacity_for_part(caps, c, bits.by_place ? NULL : &bits, chunk, used)
               : *chunk;
}

size_t
qv_pack_choose(const qv_capacity *chunk, const qv_capacity *waiting, size_t n,
               size_t chosen[QV_PACK_ITEMS])
{
    qv_capacity left = *chunk;
    bool taken[QV_PACK_ITEMS] = { false };
    size_t best = 0, used = 0;
    n = n < QV_PACK_ITEMS ? n : QV_PACK_ITEMS;
    while (best < n) {
        taken[best] = true;
        qv_capacity_count(&left, &waiting[best], -1);
        best = n;
        for (size_t i = 0; i < n; i++)
            if (!taken[i] && qv_capacity_fits(&left, &waiting[i]) &&
                (best == n || waiting[i].rows > waiting[best].rows))
                best = i;
    }
    for (size_t i = 0; i < n; i++)
        if (taken[i])
            chosen[used++] = i;
    return used;
}
