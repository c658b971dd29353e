/* SPDX-License-Identifier: MIT */
/* config.json. What it allows is then described: a checkpoint whose file has the header that the
 * tower asks for, and no bytes behind it that take memory. */
#define _GNU_SOURCE
#include "towers/config.h"
#include "fuzz.h"
#include "towers/tower.h"

enum { MOST_TENSORS = 100, MOST_HEADER = 64 << 10 };

struct header {
    char text[MOST_HEADER];
    size_t used;
    uint64_t data; /* bytes described so far */
};

/* False if they are more than a file can have. */
static bool
describe_tensor(struct header *h, const struct qv_tensor_spec *spec, int part)
{
    uint64_t bytes = 2, end;
    char shape[64];
    const bool flat = spec->form == QV_TENSOR_VECTOR || spec->form == QV_TENSOR_BIAS;
    snprintf(shape, sizeof shape, flat ? "%lld" : "%lld,%lld", (long long)spec->n,
             (long long)spec->k);
    if (__builtin_mul_overflow(bytes, spec->n, &bytes) ||
        __builtin_mul_overflow(bytes, flat ? 1 : spec->k, &bytes) ||
        __builtin_add_overflow(h->data, bytes, &end) || end > (uint64_t)1 << 50)
        return false;
    h->used += (size_t)
        snprintf(h->text + h->used, sizeof h->text - h->used,
                 "%c\"visual.%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                 h->used ? ',' : '{', spec->names[part], shape, (unsigned long long)h->data,
                 (unsigned long long)end);
    h->data = end;
    return h->used < sizeof h->text;
}

static bool
describe_tower(struct header *h, const struct qv_config *c)
{
    struct qv_tower tower;
    qv_error err;
    bool fits = !fuzz_failed(qv_tower_open(c, &tower, &err), &err) && tower.n <= MOST_TENSORS;
    for (size_t id = 0; id < tower.n && fits; id++) {
        const struct qv_tensor_spec *spec = &tower.tensors[id];
        FUZZ_CHECK(spec->n > 0 && spec->k > 0 && spec->n_parts > 0);
        for (int part = 0; part < spec->n_parts && fits; part++) {
            FUZZ_CHECK(*spec->names[part]);
            fits = describe_tensor(h, spec, part);
        }
    }
    qv_tower_close(&tower);
    return fits;
}

static bool
write_checkpoint(const struct qv_config *c)
{
    static struct header h;
    h.used = h.data = 0;
    if (!describe_tower(&h, c))
        return false;
    h.text[h.used++] = '}';
    const char head[8] = { (char)(h.used & 255), (char)(h.used >> 8 & 255), (char)(h.used >> 16) };
    const char *path = fuzz_file("model.safetensors", head, sizeof head);
    const int fd = open(path, O_WRONLY | O_APPEND);
    FUZZ_CHECK(fd >= 0 && write(fd, h.text, h.used) == (ssize_t)h.used);
    const bool fits = !ftruncate(fd, (off_t)(8 + h.used + h.data));
    close(fd);
    return fits;
}

static void
plan(qv_model *model, const struct qv_config *c)
{
    qv_error err;
    for (int i = 0; i < 4; i++) {
        qv_plan *made = NULL;
        qv_plan_info info;
        qv_plan_options options = { .input = i & 1 ? QV_INPUT_PATCHES : QV_INPUT_FRAMES };
        const int64_t grid_thw[3] = { 1 + i / 2, c->merge * (1 + i), c->merge };
        if (fuzz_failed(qv_plan_options_for(model, grid_thw, &options, &err), &err))
            continue;
        if (fuzz_failed(qv_plan_create(model, &options, &made, &err), &err))
            continue;
        qv_plan_get_info(made, &info);
        FUZZ_CHECK(info.rows >= grid_thw[0] * grid_thw[1] * grid_thw[2] && info.flops > 0);
        FUZZ_CHECK(info.segments >= grid_thw[0] && info.tokens >= (1 + i / 2) * (1 + i));
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
