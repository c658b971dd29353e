/* SPDX-License-Identifier: MIT */
/*
 * Tests matrices that MLX quantised and that are as large as those of a real tower. They are read
 * in slices, which tiny ones never are. MLX has groups of 32, 64 and 128; a file may claim any
 * size, with scales of any dtype.
 */

#include "test.h"

#include "sparse.h"
#include "tempdir.h"
#include "tiny.h"
#include "towers/read_config.h"
#include "towers/stored_tensor.h"
#include "towers/weights.h"

/* The blocks of tower M; this tower has one of them. A matrix takes 16 MB in f32, and several
 * slices. */
enum { HIDDEN = 1024, INTERMEDIATE = 4096 };

struct form {
    int bits;
    int64_t group;
    qv_dtype scales;
};

static const char *const dtype_names[QV_DTYPE_MAX] = {
    [QV_F32] = "F32", [QV_F16] = "F16", [QV_BF16] = "BF16"
};

/* A quantised matrix of the file, and where its data begin. */
struct matrix {
    const struct qv_tensor_spec *spec;
    uint64_t packed, scales, biases;
};

static bool
is_mlp(const struct qv_tensor_spec *spec)
{
    return strstr(spec->names[0], "mlp.linear_fc") && spec->form == QV_TENSOR_MATRIX;
}

/* The values are made from small whole numbers and halves of them, so that every product and sum is
 * exact in f32. */
static float
scale_at(int64_t group)
{
    return (float)(1 + group % 7) / 64;
}

static float
bias_at(int64_t group)
{
    return (float)(group % 13 - 6) / 8;
}

static uint32_t
word_at(int64_t i)
{
    return (uint32_t)i * 2654435761u ^ (uint32_t)i >> 3;
}

static float
value_at(const struct form *form, int64_t i)
{
    const int per_word = 32 / form->bits, shift = (int)(i % per_word) * form->bits;
    const uint32_t q = word_at(i / per_word) >> shift & ((1u << form->bits) - 1);
    return (float)q * scale_at(i / form->group) + bias_at(i / form->group);
}

static void
write_at(int fd, const void *data, size_t bytes, uint64_t at)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(at + done));
        assert_true(n > 0);
        done += (size_t)n;
    }
}

static void
write_groups(int fd, const struct form *form, int64_t n, float (*of)(int64_t), uint64_t at)
{
    const size_t bytes = (size_t)n * qv_dtype_bytes(form->scales);
    char *data = test_alloc(bytes);
    for (int64_t i = 0; i < n; i++)
        qv_store(data, form->scales, i, of(i));
    write_at(fd, data, bytes, at);
}

static void
write_values(int fd, const struct sparse *s, const struct form *form, const struct matrix *m)
{
    const int64_t values = m->spec->n * m->spec->k, words = values * form->bits / 32;
    uint32_t *packed = test_alloc((size_t)words * sizeof *packed);
    for (int64_t i = 0; i < words; i++)
        packed[i] = word_at(i);
    write_at(fd, packed, (size_t)words * sizeof *packed, sparse_offset(s, m->packed));
    write_groups(fd, form, values / form->group, scale_at, sparse_offset(s, m->scales));
    write_groups(fd, form, values / form->group, bias_at, sparse_offset(s, m->biases));
}

/* Adds one of weight, scales and biases, and returns where its data begin. */
static uint64_t
add(struct sparse *s, const char *dtype, size_t element, const struct qv_tensor_spec *spec,
    const char *suffix, int64_t k)
{
    const uint64_t begin = s->data;
    char name[128];
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(spec->names[0]) - strlen("weight")),
             spec->names[0], suffix);
    assert_true(sparse_add(s, dtype, element, "vision_tower.", name, 2, (int64_t[]){ spec->n, k }));
    return begin;
}

/* Writes a block whose MLP is quantised, or only declared without values. All other tensors are
 * zeros in f32. */
static void
write_checkpoint(const struct form *form, bool with_values)
{
    static struct sparse s;
    struct matrix quantised[2];
    struct qv_config config;
    struct qv_tower tower;
    size_t n = 0;
    assert_ok(qv_config_read(tempdir, &config, ERR) || qv_tower_open(&config, &tower, ERR));
    s.used = s.data = 0;
    for (size_t id = 0; id < tower.n; id++) {
        const struct qv_tensor_spec *spec = &tower.tensors[id];
        const bool flat = spec->form == QV_TENSOR_VECTOR || spec->form == QV_TENSOR_BIAS;
        const char *scales = dtype_names[form->scales];
        const size_t element = qv_dtype_bytes(form->scales);
        const int64_t groups = spec->k / form->group;
        if (!is_mlp(spec)) {
            assert_true(sparse_add(&s, "F32", 4, "vision_tower.", spec->names[0], flat ? 1 : 2,
                                   (int64_t[]){ spec->n, spec->k }));
            continue;
        }
        assert_true(n < 2);
        quantised[n++] = (struct matrix){
            spec,
            add(&s, "U32", 4, spec, "weight", spec->k * form->bits / 32),
            add(&s, scales, element, spec, "scales", groups),
            add(&s, scales, element, spec, "biases", groups),
        };
    }
    const int fd = sparse_write(&s, temp_path("model.safetensors"));
    assert_true(fd >= 0 && n == 2);
    for (size_t i = 0; i < n && with_values; i++)
        write_values(fd, &s, form, &quantised[i]);
    close(fd);
    qv_tower_close(&tower);
}

static void
write_config(void)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\":\"qwen3_vl\",\"vision_config\":{\"model_type\":\"qwen3_vl\","
             "\"depth\":1,\"hidden_size\":%d,\"intermediate_size\":%d,\"num_heads\":16,"
             "\"patch_size\":4,\"spatial_merge_size\":1,\"out_hidden_size\":8,"
             "\"num_position_embeddings\":4,\"deepstack_visual_indexes\":[]}}",
             HIDDEN, INTERMEDIATE);
    temp_text("config.json", text);
}

/* Checks values of the quantised matrices on the device of the reference: each fifth, at every
 * place in a word and in a group. */
static void
is_what_it_stands_for(const struct form *form, const qv_model *model)
{
    for (size_t id = 0; id < model->weights.n; id++) {
        const struct qv_tensor_spec *spec = &model->tower.tensors[id];
        const void *values = qv_host_pointer(model->weights.buffers[id]);
        for (int64_t i = 0; is_mlp(spec) && i < spec->n * spec->k; i += 5) {
            const float wanted = value_at(form, i), found = (float)qv_load(values, model->dtype, i);
            if (found != (model->dtype == QV_F32 ? wanted : qv_bf16_to_f32(qv_f32_to_bf16(wanted))))
                fail_msg("%d bits, groups of %lld, scales in %s: %s: value %lld is %g, not %g",
                         form->bits, (long long)form->group, dtype_names[form->scales],
                         spec->names[0], (long long)i, (double)found, (double)wanted);
        }
    }
}

/* Loads by one thread in slices of 8 MB, or by several in slices of 2 MB. */
static void
loads(const struct form *form, qv_dtype dtype, int threads)
{
    struct tiny t = tiny_open_family(tempdir, "ref", dtype, threads);
    is_what_it_stands_for(form, t.model);
}

static void
is_refused(const struct form *form, bool bits)
{
    char words[128] = "model.safetensors|mlp.linear_fc1.weight|4 or 8 bits";
    if (!bits)
        snprintf(words, sizeof words,
                 "model.safetensors|mlp.linear_fc1.weight|groups of %lld|32, 64 and 128",
                 (long long)form->group);
    expect_load_failure("quantised", tempdir, "ref", NULL, QV_EFORMAT, words);
}

/* The three ways to load take turns, so that each meets every group size and every dtype. */
static void
groups_of_every_size(int bits, qv_dtype scales, int turn)
{
    for (int64_t group = 1; group <= 256; group *= 2) {
        const struct form form = { bits, group, scales };
        const bool right = bits == 4 || bits == 8, known = right && group >= 32 && group <= 128;
        write_checkpoint(&form, known);
        if (!known)
            is_refused(&form, !right);
        else
            loads(&form, turn % 3 ? QV_BF16 : QV_F32, turn % 3 == 2 ? 4 : 1);
        turn++;
    }
}

TEST(what_mlx_has_is_loaded_and_nothing_else)
{
    static const int bits[] = { 2, 3, 4, 6, 8 };
    static const qv_dtype scales[] = { QV_F32, QV_F16, QV_BF16 };
    write_config();
    for (int b = 0; b < 5; b++)
        for (int s = 0; s < 3; s++)
            groups_of_every_size(bits[b], scales[s], b + s);
}

/* Whatever is declared about a stored tensor, it is never read into too little memory. */
TEST(a_room_that_is_too_small_is_refused)
{
    static const struct form form = { 8, 32, QV_F32 };
    struct qv_stored_tower stored;
    struct qv_config config;
    struct qv_tower tower;
    struct qv_stored_tensor tensor;
    qv_error err = { 0 };
    void *values;
    write_config();
    write_checkpoint(&form, true);
    assert_ok(qv_config_read(tempdir, &config, ERR) || qv_tower_open(&config, &tower, ERR) ||
              qv_stored_tower_open(tempdir, &config, &tower, &stored, ERR));
    const struct qv_tensor_spec *spec = &tower.tensors[tower.blocks[0].fc1.weight];
    assert_ok(qv_stored_find(&stored, &config, spec, 0, &tensor, ERR));
    for (int64_t group = 1; group <= 32; group *= 32) { /* 1 stands for a tensor that nobody has
                                                         * checked. */
        tensor.group = group;
        const size_t row = qv_stored_row_bytes(&tensor);
        assert_int_equal(row, spec->k * (group == 1 ? 9 : 4));
        char *raw = test_alloc(3 * row), *canonical = test_alloc(3 * row);
        assert_true(raw && canonical);
        struct qv_stored_room room = { raw, canonical, 3 * row - 1 };
        const qv_status s = qv_stored_read(&tensor, 5, 3, &room, &values, &err);
        expect_failure("too small", QV_EFORMAT, "mlp.linear_fc1.weight: 3 rows need", s, &err);
        room.bytes++;
        assert_ok(group == 32 && qv_stored_read(&tensor, 5, 3, &room, &values, ERR));
        for (int64_t i = 0; group == 32 && i < 3 * spec->k; i++)
            assert_true(((const float *)values)[i] == value_at(&form, 5 * spec->k + i));
    }
    qv_stored_tower_close(&stored);
    qv_tower_close(&tower);
}

TEST(slices_of_a_few_bytes_give_the_same)
{
    const qv_model_options options = { .dtype = QV_BF16 };
    tiny_slices_are_the_same(QV_GOLDEN "/qwen3_vl", "ref", &options);
    tiny_slices_are_the_same(QV_GOLDEN "/qwen2_5_vl", "ref", &options);
    tiny_slices_are_the_same(QV_GOLDEN "/glm4v", "ref", &options);
}

TEST_EACH(tempdir_make, tempdir_remove);
