/* SPDX-License-Identifier: MIT */
/*
 * Tests reading ahead. Items that several threads prepare are taken and followed in their order, in
 * no more places than there are, and the first failure in that order is the one reported. A tower
 * that is large enough for several threads is the same to the bit as with one thread. Runs under
 * the thread sanitizer too. pread() is replaced here (LINKER:--wrap).
 */

#include "test.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>

#include "dtype.h"
#include "files/safetensors.h"
#include "model/model.h"
#include "tempdir.h"
#include "tiny.h"
#include "towers/read_config.h"
#include "towers/weights.h"
#include "wrap.h"

/* ---- items ----------------------------------------------------------------------------------- */

enum { MOST_ITEMS = 300, MOST_SLOTS = 12 };

struct ring {
    int slots;
    size_t bad, worse;                    /* The items that fail. */
    atomic_size_t begun, taken, followed; /* `taken` counts the items with which the caller is
                                           * done. */
    atomic_int wrong;                     /* Counts errors, because only the test's own thread may
                                           * assert. */
    size_t places[MOST_SLOTS];            /* These are not atomic, so that the thread sanitizer
                                           * watches them. */
};

static qv_status
prepare(void *user, size_t i, qv_error *err)
{
    struct ring *r = user;
    const size_t slots = (size_t)r->slots;
    atomic_fetch_add(&r->begun, 1);
    /* By now the last item in this place has been followed, and the caller has another one. */
    r->wrong += i >= slots && (r->followed < i - slots + 1 || r->taken < i - slots + 1);
    for (size_t n = i * 2654435761u % 7; n; n--)
        sched_yield();
    r->places[i % slots] = i + 1;
    if (i != r->bad && i != r->worse)
        return QV_OK;
    snprintf(err->text, sizeof err->text, "item %zu", i);
    return err->status = QV_EIO;
}

static void
follow(void *user, size_t i)
{
    struct ring *r = user;
    r->wrong += r->places[i % (size_t)r->slots] != i + 1;
    r->wrong += atomic_fetch_add(&r->followed, 1) != i;
}

static struct qv_prefetch *
open_ring(struct ring *r, size_t n, int slots, int threads)
{
    struct qv_prefetch *p = NULL;
    *r = (struct ring){ .slots = slots, .bad = MOST_ITEMS, .worse = MOST_ITEMS };
    const struct qv_prefetch_work work = { n, slots, threads, r, prepare, follow };
    assert_ok(qv_prefetch_open(&work, &p, ERR));
    return p;
}

TEST(items_come_in_their_order)
{
    static const size_t counts[] = { 0, 1, 2, 13, MOST_ITEMS };
    struct ring r;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int slots = 1; slots <= MOST_SLOTS; slots += 1 + slots / 4)
            for (int threads = 1; threads <= 9; threads += 1 + threads / 3) {
                struct qv_prefetch *p = open_ring(&r, counts[c], slots, threads);
                for (size_t i, n = 0; n <= counts[c]; n++) {
                    r.taken = n;
                    assert_int_equal(qv_prefetch_next(p, &i, NULL), QV_OK);
                    assert_int_equal(i, n);
                    if (i < counts[c])
                        assert_int_equal(r.places[i % (size_t)slots], i + 1);
                }
                assert_int_equal(r.followed, counts[c]);
                qv_prefetch_close(p);
                assert_int_equal(r.wrong, 0);
                assert_int_equal(r.begun, counts[c]);
            }
}

/* If two items fail, the one with the lower number is reported, whichever fails first in time. */
TEST(the_first_failure_is_told)
{
    enum { SLOTS = 8 };
    for (size_t bad = 0; bad < 40; bad += 3)
        for (int threads = 1; threads <= 8; threads++) {
            struct ring r = { .slots = SLOTS, .bad = bad, .worse = bad + 1 };
            const struct qv_prefetch_work work = {
                MOST_ITEMS, SLOTS, threads, &r, prepare, follow
            };
            struct qv_prefetch *p = NULL;
            qv_error err = { 0 };
            qv_status status;
            char words[16];
            size_t i = 0, n = 0;
            assert_ok(qv_prefetch_open(&work, &p, ERR));
            while (!(status = qv_prefetch_next(p, &i, &err))) {
                assert_int_equal(i, n);
                r.taken = ++n;
            }
            qv_prefetch_close(p);
            snprintf(words, sizeof words, "item %zu", bad);
            assert_int_equal(status, QV_EIO);
            assert_string_equal(err.text, words);
            assert_int_equal(n, bad);
            assert_true(r.begun <= bad + SLOTS);
            assert_int_equal(r.wrong, 0);
        }
}

TEST(it_can_be_left_at_any_item)
{
    struct ring r;
    for (size_t most = 0; most < 20; most++) {
        struct qv_prefetch *p = open_ring(&r, MOST_ITEMS, 5, 4);
        for (size_t i, n = 0; n < most; r.taken = ++n)
            assert_int_equal(qv_prefetch_next(p, &i, NULL), QV_OK);
        qv_prefetch_close(p);
        assert_int_equal(r.wrong, 0);
        assert_true(r.begun <= most + 5);
    }
    qv_prefetch_close(NULL);
}

/* ---- a tower --------------------------------------------------------------------------------- */

static atomic_int reads, fail_read; /* fail_read: the number of the read that fails, from 1; 0:
                                     * none. */

WRAPPED(ssize_t, pread, (int fd, void *data, size_t bytes, off_t offset))
{
    errno = EIO;
    return atomic_fetch_add(&reads, 1) + 1 == fail_read ? -1
                                                        : __real_pread(fd, data, bytes, offset);
}

/* 44 MB in bf16 are enough for three threads, and for matrices of several slices. */
static const char config[] =
    "{\"model_type\":\"qwen3_vl\",\"vision_config\":{\"model_type\":\"qwen3_vl\",\"depth\":1,"
    "\"hidden_size\":512,\"num_heads\":8,\"intermediate_size\":16384,\"patch_size\":16,"
    "\"out_hidden_size\":512,\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[]}}";

/* Writes tensor i. Every fourth is stored as f32. Each tensor in `spoilt` has one value that is not
 * finite. */
static void
put_tensor(struct qv_safetensors_writer *w, size_t i, int64_t n, const int spoilt[2])
{
    const bool f32 = i % 4 == 1;
    float *wide = test_alloc((size_t)n * sizeof *wide);
    uint16_t *half = test_alloc((size_t)n * sizeof *half);
    uint32_t seed = (uint32_t)i;
    assert_true(wide && half);
    for (int64_t j = 0; j < n; j++) {
        wide[j] = (float)(int32_t)test_random(&seed) * 0x1p-31f;
        half[j] = qv_f32_to_bf16(wide[j]);
    }
    for (int k = 0; k < 2; k++)
        if (spoilt[k] == (int)i) {
            wide[n - 1] = NAN;
            half[n - 1] = qv_f32_to_bf16(NAN);
        }
    assert_ok(qv_safetensors_writer_put(w, i, 0, f32 ? (void *)wide : half,
                                        (size_t)n * (f32 ? 4 : 2), ERR));
}

static void
write_tower(const int spoilt[2])
{
    enum { MOST = 40 };
    static struct qv_safetensor tensors[MOST];
    static char names[MOST][128];
    struct qv_config c;
    struct qv_tower tower = { 0 };
    struct qv_safetensors_writer *w = NULL;
    temp_text("config.json", config);
    assert_ok(qv_config_read(tempdir, &c, ERR) || qv_tower_open(&c, &tower, ERR));
    assert_true(tower.n > 10 && tower.n <= MOST);
    for (size_t i = 0; i < tower.n; i++) {
        const struct qv_tensor_spec *s = &tower.tensors[i];
        const bool flat = s->form == QV_TENSOR_VECTOR || s->form == QV_TENSOR_BIAS;
        snprintf(names[i], sizeof names[i], "model.visual.%s", s->names[0]);
        tensors[i] = (struct qv_safetensor){ .name = names[i],
                                             .n_dims = flat ? 1 : 2,
                                             .shape = { s->n, s->k } };
        strcpy(tensors[i].dtype_name, i % 4 == 1 ? "F32" : "BF16");
    }
    assert_ok(qv_safetensors_writer_open(temp_path("model.safetensors"), tensors, tower.n, NULL, 0,
                                         &w, ERR));
    for (size_t i = 0; i < tower.n; i++)
        put_tensor(w, i, tower.tensors[i].n * tower.tensors[i].k, spoilt);
    assert_ok(qv_safetensors_writer_finish(&w, ERR));
    qv_tower_close(&tower);
}

static qv_status
load(qv_dtype dtype, int threads, qv_model **model, qv_error *err)
{
    const qv_context_options o = { .backend = "ref", .threads = threads };
    qv_context *ctx = tiny_context_with(&o);
    reads = 0;
    const qv_status s =
        qv_model_load(ctx, tempdir, &(qv_model_options){ .dtype = dtype }, model, err);
    if (!s)
        test_ends(*model, tiny_free_model);
    return s;
}

TEST(threads_load_the_same_weights)
{
    static const qv_dtype dtypes[] = { QV_BF16, QV_F32 };
    write_tower((const int[2]){ -1, -1 });
    for (size_t d = 0; d < 2; d++) {
        qv_model *models[2] = { NULL };
        for (int i = 0; i < 2; i++)
            assert_ok(load(dtypes[d], i ? 4 : 1, &models[i], ERR));
        const struct qv_weights *one = &models[0]->weights, *many = &models[1]->weights;
        assert_true(one->bytes > 40 << 20);
        assert_int_equal(one->bytes, many->bytes);
        assert_memory_equal(one->memory->base, many->memory->base, one->bytes);
        assert_string_equal(one->digest, many->digest);
    }
}

/* The error names the first bad tensor and the value's place in it, several slices on, with any
 * number of threads. The tensor is a matrix of 16384 rows whose last value is not a number. */
TEST(the_first_bad_tensor_is_named)
{
    write_tower((const int[2]){ 11, 12 });
    char words[sizeof(qv_error)];
    for (int threads = 1; threads <= 4; threads++) {
        qv_model *model = NULL;
        qv_error err = { 0 };
        const qv_status s = load(QV_BF16, threads, &model, &err);
        expect_failure("spoilt", QV_EFORMAT,
                       "mlp.linear_fc1.weight: value 8388607 is not finite in bf16", s, &err);
        assert_null(model);
        if (threads == 1)
            strcpy(words, err.text);
        assert_string_equal(err.text, words);
    }
}

TEST(a_read_that_fails_in_a_thread_is_an_error)
{
    qv_model *model = NULL;
    write_tower((const int[2]){ -1, -1 });
    assert_ok(load(QV_BF16, 4, &model, ERR));
    const int n = reads;
    assert_true(n > 40);
    for (int at = n; at > 0; at -= 1 + n / 6) {
        fail_read = at;
        model = NULL;
        expect_error(QV_EIO, strerror(EIO), load(QV_BF16, 4, &model, ERR));
        fail_read = 0;
        assert_null(model);
    }
}

TEST_EACH(tempdir_make, tempdir_remove);
