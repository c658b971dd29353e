/* SPDX-License-Identifier: MIT */
/* Fuzzes config.json. If it is accepted, a checkpoint is described whose file has the header that
 * the tower needs, but no data after the header that would need memory. */
#include "towers/read_config.h"
#include "fuzz.h"
#include "../sparse.h"
#include "towers/tower.h"

enum { MOST_TENSORS = 100 };

/* Returns false if the tower has more tensors than fit into the file. */
static bool
describe_tower(struct sparse *s, const struct qv_config *c)
{
    struct qv_tower tower;
    qv_error err;
    bool fits = !fuzz_failed(qv_tower_open(c, &tower, &err), &err) && tower.n <= MOST_TENSORS;
    for (size_t id = 0; id < tower.n && fits; id++) {
        const struct qv_tensor_spec *spec = &tower.tensors[id];
        const bool flat = spec->form == QV_TENSOR_VECTOR || spec->form == QV_TENSOR_BIAS;
        FUZZ_CHECK(spec->n > 0 && spec->k > 0 && spec->n_stored > 0);
        for (int stored = 0; stored < spec->n_stored && fits; stored++) {
            FUZZ_CHECK(*spec->names[stored]);
            fits = sparse_add(s, "BF16", 2, "visual.", spec->names[stored], flat ? 1 : 2,
                              (int64_t[]){ spec->n, spec->k });
        }
    }
    qv_tower_close(&tower);
    return fits;
}

static bool
write_checkpoint(const struct qv_config *c)
{
    static struct sparse s;
    s.used = s.data = 0;
    if (!describe_tower(&s, c))
        return false;
    const int fd = sparse_write(&s, fuzz_path("model.safetensors"));
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void
plan(qv_model *model, const struct qv_config *c)
{
    qv_error err;
    for (int i = 0; i < 4; i++) {
        qv_plan *made = NULL;
        qv_plan_info info;
        const int64_t grid_thw[3] = { 1 + i / 2, c->merge * (1 + i), c->merge };
        const qv_plan_options options = { .input = i & 1 ? QV_INPUT_PATCHES : QV_INPUT_FRAMES,
                                          .grid_thw = { grid_thw[0], grid_thw[1], grid_thw[2] } };
        if (fuzz_failed(qv_plan_create(model, &options, &made, &err), &err))
            continue;
        qv_plan_get_info(made, &info);
        /* a clip of several frame pairs may need several chunks of whole pairs */
        const int64_t pair = grid_thw[1] * grid_thw[2], fit = info.capacity.patches / pair;
        const int64_t n = fit < grid_thw[0] ? fit : grid_thw[0];
        FUZZ_CHECK(n >= 1 && info.flops > 0);
        FUZZ_CHECK(info.capacity.segments >= n && info.tokens >= n * (1 + i));
        qv_plan_free(&made);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static qv_context *ctx;
    qv_error err;
    struct qv_config c;
    if (!ctx)
        FUZZ_CHECK(!qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, &err));
    fuzz_file("config.json", data, size);
    if (fuzz_failed(qv_config_read(fuzz_folder, &c, &err), &err))
        return 0;
    FUZZ_CHECK(c.hidden % c.heads == 0 && qv_config_head_dim(&c) % 4 == 0);
    FUZZ_CHECK(c.n_deepstack >= 0 && c.n_deepstack <= QV_MAX_DEEPSTACK);
    FUZZ_CHECK(c.image.min_pixels <= c.image.max_pixels);
    if (!write_checkpoint(&c))
        return 0;
    qv_model *model = NULL;
    const qv_model_options options = { .describe = true };
    if (fuzz_failed(qv_model_load(ctx, fuzz_folder, &options, &model, &err), &err))
        return 0;
    plan(model, &c);
    qv_model_free(&model);
    return 0;
}
