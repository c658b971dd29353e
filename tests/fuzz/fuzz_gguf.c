/* SPDX-License-Identifier: MIT */
/* A GGUF file: reads the tensors that its header claims, and loads a tower from it on ref. */
#include "fuzz.h"

#include "engine/context.h"
#include "files/gguf.h"
#include "towers/read_config.h"
#include "towers/weights.h"

/* Reads a tensor whole and in two pieces, which must give the same bytes, and not beyond its
 * end. */
static void
read_tensor(const struct qv_gguf *file, const struct qv_gguf_tensor *t)
{
    qv_error err;
    uint8_t *whole = malloc(t->bytes + 1), *pieces = malloc(t->bytes + 1);
    const uint64_t half = t->bytes / 2;
    const int64_t values = (int64_t)(t->bytes / (uint64_t)t->type->bytes) * t->type->values;
    FUZZ_CHECK(whole && pieces);
    FUZZ_CHECK(!qv_gguf_read(file, t, 0, whole, t->bytes, &err));
    FUZZ_CHECK(!qv_gguf_read(file, t, 0, pieces, half, &err));
    FUZZ_CHECK(!qv_gguf_read(file, t, half, pieces + half, t->bytes - half, &err));
    FUZZ_CHECK(!memcmp(whole, pieces, t->bytes));
    FUZZ_CHECK(fuzz_failed(qv_gguf_read(file, t, half, whole, t->bytes + 1, &err), &err));
    if (qv_gguf_type_can_be_read(t->type)) {
        float *out = malloc((size_t)values * sizeof *out);
        FUZZ_CHECK(out);
        qv_gguf_widen(t->type, whole, values, out);
        free(out);
    }
    free(whole);
    free(pieces);
}

static bool
check_file(const char *path, size_t size)
{
    qv_error err;
    struct qv_gguf *file = NULL;
    if (fuzz_failed(qv_gguf_open(path, &file, &err), &err)) {
        FUZZ_CHECK(!file);
        return false;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < qv_gguf_count(file); i++) {
        const struct qv_gguf_tensor *t = qv_gguf_at(file, i);
        FUZZ_CHECK(qv_gguf_find(file, t->name) == t);
        FUZZ_CHECK(t->n_dims >= 1 && t->n_dims <= QV_GGUF_MAX_DIMS);
        FUZZ_CHECK(t->offset <= size && t->bytes <= size - t->offset);
        sum += t->bytes;
        read_tensor(file, t);
    }
    FUZZ_CHECK(sum <= size); /* no byte belongs to two tensors */
    FUZZ_CHECK(json_is_object(qv_gguf_keys(file)));
    qv_gguf_close(&file);
    FUZZ_CHECK(!file);
    return true;
}

static void
load(const char *path, const struct qv_config *c, const struct qv_tower *tower)
{
    static const struct qv_weights_loading hows[] = {
        { .dtype = QV_F32, .threads = 1, .describe = true },
        { .dtype = QV_F32, .threads = 1 },
        { .dtype = QV_BF16, .threads = 2 }
    };
    qv_context *ctx = NULL;
    struct qv_leftover leftover;
    qv_error err;
    FUZZ_CHECK(!qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, &err));
    const bool found = !fuzz_failed(qv_leftover_find(path, c, tower, &leftover, &err), &err);
    for (int i = 0; i < 3; i++) {
        struct qv_weights w = { 0 };
        const bool failed =
            fuzz_failed(qv_weights_load(ctx->dev, c, tower, path, &hows[i], &w, &err), &err);
        FUZZ_CHECK(i || found == !failed); /* both look for the same tensors */
        if (!failed)
            qv_weights_free(ctx->dev, &w);
    }
    qv_context_close(&ctx);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct qv_config c;
    struct qv_tower tower;
    qv_error err;
    const char *path = fuzz_file("mmproj.gguf", data, size);
    if (!check_file(path, size))
        return 0;
    path = fuzz_path("mmproj.gguf");
    qv_weights_slice_bytes = 64;
    if (fuzz_failed(qv_config_read(path, &c, &err), &err))
        return 0;
    FUZZ_CHECK(!fuzz_failed(qv_tower_open(&c, &tower, &err), &err));
    load(path, &c, &tower);
    qv_tower_close(&tower);
    return 0;
}
