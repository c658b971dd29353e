/* SPDX-License-Identifier: MIT */
/*
 * Tests checkpoints as MLX converts them: "vision_tower." names, a patch embedding with its
 * channels last, and matrices that are quantised in groups by MLX's rule (mlx.core.quantize,
 * affine). In each group of a row, the least value is the bias and (greatest - least) / (2^bits -
 * 1) is the scale. Values are packed into 32-bit words, the first in the lowest bits.
 */

#include "test.h"

#include <math.h>
#include <unistd.h>

#include "files/safetensors.h"
#include "tempdir.h"
#include "tiny.h"

enum { MOST = 512, HIDDEN = 32 };

/* A checkpoint that is being written: the tensors and their data. */
struct written {
    struct qv_safetensor tensors[MOST];
    char names[MOST][192];
    void *data[MOST];
    size_t bytes[MOST], n;
};

/* How it is written: quantised, or as the values that the quantised matrices stand for; and its
 * faults. */
struct how {
    int bits;
    bool as_values;
    const char *drop;                  /* A tensor that is left out, given by the end of its
                                        * name. */
    int64_t groups, words;             /* Wrong numbers of groups and words in a row. */
    int64_t biases_groups;             /* A wrong number of groups for the biases alone. */
    const char *scales_as, *biases_as; /* Wrong dtypes. */
};

static void
put(struct written *w, const char *dtype, const char *name, int n_dims, const int64_t *shape,
    void *data, size_t bytes)
{
    assert_true(w->n < MOST);
    struct qv_safetensor *t = &w->tensors[w->n];
    *t = (struct qv_safetensor){ .n_dims = n_dims };
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", dtype);
    snprintf(w->names[w->n], sizeof w->names[0], "%s", name);
    t->name = w->names[w->n];
    memcpy(t->shape, shape, (size_t)n_dims * sizeof *shape);
    w->bytes[w->n] = bytes;
    w->data[w->n++] = data;
}

/* Quantises a group of n values of a row to packed[], and also gives the values that it stands
 * for. */
static void
quantise(const float *x, int64_t n, int bits, uint32_t *packed, int64_t first, float *scale,
         float *bias, float *values)
{
    float least = INFINITY, greatest = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        least = fminf(least, x[i]);
        greatest = fmaxf(greatest, x[i]);
    }
    *bias = least;
    *scale = (greatest - least) / (float)((1 << bits) - 1);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t q = (uint32_t)lrintf((x[i] - *bias) / *scale);
        const int64_t at = (first + i) * bits;
        packed[at / 32] |= q << (at % 32);
        values[i] = (float)q * *scale + *bias;
    }
}

/* Writes weight[rows, k] in groups of 32 as MLX does, or as f32. */
static void
put_matrix(struct written *w, const struct how *how, const char *name, const float *x, int64_t rows,
           int64_t k)
{
    const int64_t group = 32, groups = k / group, words = k * how->bits / 32;
    const size_t n = (size_t)(rows * groups);
    float *scales = test_alloc(n * sizeof *scales), *biases = test_alloc(n * sizeof *biases);
    float *values = test_alloc((size_t)(rows * k) * sizeof *values);
    uint32_t *packed = test_ends(calloc((size_t)(rows * words), sizeof *packed), free);
    for (int64_t i = 0; i < rows * groups; i++)
        quantise(x + i * group, group, how->bits, packed, i * group, &scales[i], &biases[i],
                 values + i * group);
    char other[160];
    const int stem = (int)(strlen(name) - strlen("weight"));
    if (how->as_values) {
        put(w, "F32", name, 2, (int64_t[]){ rows, k }, values, (size_t)(rows * k) * 4);
        return;
    }
    const int64_t said = how->groups ? how->groups : groups,
                  width = how->words ? how->words : words;
    put(w, "U32", name, 2, (int64_t[]){ rows, width }, packed, (size_t)(rows * words) * 4);
    snprintf(other, sizeof other, "%.*sscales", stem, name);
    put(w, how->scales_as ? how->scales_as : "F32", other, 2, (int64_t[]){ rows, said }, scales,
        n * 4);
    snprintf(other, sizeof other, "%.*sbiases", stem, name);
    put(w, how->biases_as ? how->biases_as : "F32", other, 2,
        (int64_t[]){ rows, how->biases_groups ? how->biases_groups : said }, biases, n * 4);
}

/* [o, c, taps] -> [o, taps, c] */
static void
put_patch_embed(struct written *w, const struct qv_safetensor *t, const float *x)
{
    const int64_t *d = t->shape, c = d[1], taps = d[2] * d[3] * d[4];
    float *last = test_alloc((size_t)(d[0] * c * taps) * sizeof *last);
    for (int64_t i = 0; i < d[0] * c * taps; i++)
        last[i / (c * taps) * c * taps + i % taps * c + i / taps % c] = x[i];
    put(w, "F32", "vision_tower.patch_embed.proj.weight", 5,
        (int64_t[]){ d[0], d[2], d[3], d[4], c }, last, (size_t)(d[0] * c * taps) * 4);
}

static bool
is_dropped(const struct how *how, const char *name)
{
    const size_t n = how->drop ? strlen(how->drop) : 0, all = strlen(name);
    return n && all >= n && !strcmp(name + all - n, how->drop);
}

static void
take(struct written *w, const struct how *how, const struct qv_safetensors *file,
     const struct qv_safetensor *t)
{
    static const char prefix[] = "model.visual.";
    char name[160];
    const int64_t n = (int64_t)t->bytes / 2;
    uint16_t *in = test_alloc(t->bytes);
    float *x = test_alloc((size_t)n * sizeof *x);
    if (strncmp(t->name, prefix, sizeof prefix - 1) != 0)
        return;
    assert_ok(qv_safetensors_read(file, t, 0, in, t->bytes, ERR));
    for (int64_t i = 0; i < n; i++)
        x[i] = qv_bf16_to_f32(in[i]);
    snprintf(name, sizeof name, "vision_tower.%s", t->name + sizeof prefix - 1);
    const bool matrix = t->n_dims == 2 && t->shape[1] % 32 == 0 && !strstr(name, "pos_embed");
    if (t->n_dims == 5)
        put_patch_embed(w, t, x);
    else if (matrix)
        put_matrix(w, how, name, x, t->shape[0], t->shape[1]);
    else
        put(w, "F32", name, t->n_dims, t->shape, x, (size_t)n * 4);
}

static void
write_checkpoint(const struct how *how)
{
    static struct written w;
    struct qv_safetensors *file = NULL;
    struct qv_safetensors_writer *to = NULL;
    w.n = 0;
    assert_ok(qv_safetensors_open(QV_GOLDEN "/qwen3_vl/model.safetensors", &file, ERR));
    for (size_t i = 0; i < qv_safetensors_count(file); i++)
        take(&w, how, file, qv_safetensors_at(file, i));
    qv_safetensors_close(&file);
    size_t kept = 0;
    for (size_t i = 0; i < w.n; i++) {
        if (is_dropped(how, w.names[i]))
            continue;
        w.tensors[kept] = w.tensors[i];
        w.data[kept] = w.data[i];
        w.bytes[kept++] = w.bytes[i];
    }
    w.n = kept;
    assert_ok(qv_safetensors_writer_open(temp_path("model.safetensors"), w.tensors, w.n, NULL, 0,
                                         &to, ERR));
    for (size_t i = 0; i < w.n; i++) {
        const size_t said = (size_t)w.tensors[i].shape[0] * 4 *
                            (size_t)(w.tensors[i].n_dims > 1 ? w.tensors[i].shape[1] : 1);
        void *grown = test_ends(calloc(1, w.bytes[i] < said ? said : w.bytes[i]), free);
        memcpy(grown, w.data[i], w.bytes[i]);
        const size_t bytes = w.tensors[i].n_dims == 5 ? w.bytes[i] : said;
        assert_ok(qv_safetensors_writer_put(to, i, 0, grown, bytes, ERR));
    }
    assert_ok(qv_safetensors_writer_finish(&to, ERR));
}

static float *
tokens_of(qv_dtype dtype, size_t *bytes)
{
    struct tiny t = tiny_open_family(tempdir, "ref", dtype, 1);
    return tiny_fixed_tokens(&t, bytes);
}

/* Quantised matrices give the same model as the values that they stand for, rounded to the model's
 * dtype. */
TEST(quantised_is_what_it_stands_for)
{
    static const qv_dtype dtypes[] = { QV_F32, QV_BF16 };
    temp_copy("qwen3_vl/config.json", "config.json");
    for (int bits = 4; bits <= 8; bits += 4)
        for (int d = 0; d < 2; d++) {
            size_t n, m;
            write_checkpoint(&(struct how){ .bits = bits, .as_values = true });
            float *expected = tokens_of(dtypes[d], &n);
            write_checkpoint(&(struct how){ .bits = bits });
            float *found = tokens_of(dtypes[d], &m);
            assert_int_equal(n, m);
            assert_memory_equal(expected, found, n);
            for (size_t i = 0; i < n / sizeof *found; i++)
                assert_true(isfinite(found[i]));
        }
}

/* However matrices are cut into slices to be read, they lie the same on the device. */
TEST(slices_are_the_same)
{
    const qv_model_options options = { .dtype = QV_F32 };
    static const char *const backends[] = { "ref", "cpu" };
    temp_copy("qwen3_vl/config.json", "config.json");
    write_checkpoint(&(struct how){ .bits = 4 });
    for (int i = 0; i < 2; i++)
        if (qv_backend_find(backends[i]))
            tiny_slices_are_the_same(tempdir, backends[i], &options);
}

TEST(what_is_not_in_that_form_is_refused)
{
    static const struct {
        qv_status status;
        const char *words;
        struct how how;
    } cases[] = {
        { QV_EFORMAT,
          "no tensor vision_tower.blocks.0.attn.qkv.scales|is quantised (U32)",
          { .bits = 4, .drop = "blocks.0.attn.qkv.scales" } },
        { QV_EFORMAT,
          "no tensor vision_tower.blocks.1.attn.proj.biases",
          { .bits = 8, .drop = "blocks.1.attn.proj.biases" } },
        { QV_EFORMAT,
          "qkv.weight is quantised as [96,2] with scales [96,1]|[96,32]|4 or 8 bits",
          { .bits = 4, .words = 2 } },
        { QV_EFORMAT, "[96,3]", { .bits = 4, .words = 3 } },
        { QV_EFORMAT, "scales [96,3]", { .bits = 8, .groups = 3 } },
        { QV_EFORMAT, "4 or 8 bits in groups can be loaded", { .bits = 8, .biases_groups = 2 } },
        { QV_EUNSUPPORTED, "qkv.scales is I32", { .bits = 8, .scales_as = "I32" } },
        { QV_EUNSUPPORTED,
          "qkv.scales is F32 and its biases are I32; both must be",
          { .bits = 8, .biases_as = "I32" } },
    };
    temp_copy("qwen3_vl/config.json", "config.json");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_checkpoint(&cases[i].how);
        expect_load_failure("quantised", tempdir, "ref", NULL, cases[i].status, cases[i].words);
    }
}

TEST_EACH(tempdir_make, tempdir_remove);
