/* SPDX-License-Identifier: MIT */
/*
 * Tests jobs. Each source has the tokens that its item gives alone in the same capacity, in any
 * order, with any number of decoders, sinks and devices. The sink is called exactly once at a
 * source's end. A fault of one source costs only that one. Memory stays below its bound.
 */
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "backends.h"
#include "collector.h"
#include "clips/clips.h"
#include "lock_pages.h"
#include "model/feeder_inside.h"
#include "model/plan.h"
#include "processes.h"
#include "qwenvit_clips.h"
#include "start_decoder.h"
#include "tempdir.h"
#include "tiny.h"
#include "wrap.h"

enum { ROWS = 64 };

/* ---- what came ------------------------------------------------------------------------------- */

/* The thread sanitizer sees the job's own threads, which are the same on every backend. oneDNN is
 * built without it: of its threads the sanitizer sees half, and reports races that its locks
 * prevent. */
static bool
is_tried(const char *backend)
{
#ifdef __SANITIZE_THREAD__
    return !strcmp(backend, "ref");
#else
    return backend_is_here(backend);
#endif
}

#define EACH_TRIED(b)                                                                              \
    EACH (b, test_backends)                                                                        \
        if (is_tried(*b))

/* Used by most tests: a model, and a collector of its jobs' results. */
static struct tiny usual;
static struct collector *kept;

/* A thread asks the open job for its progress until the job is closed: then no other thread may use
 * it. */
static struct {
    qv_job *job;
    atomic_bool stop;
    pthread_t thread;
} asker;

static void *
ask(void *user)
{
    qv_job_progress p = { 0 };
    for (; !atomic_load(&asker.stop); usleep(500)) {
        const int64_t added = p.added, done = p.done;
        qv_job_get_progress(asker.job, &p);
        if (p.added < added || p.done < done || p.done > p.added || !p.limit)
            abort();
    }
    return NULL;
}

static void
job_close(qv_job **job)
{
    if (asker.job) {
        atomic_store(&asker.stop, true);
        assert_int_equal(pthread_join(asker.thread, NULL), 0);
        asker.job = NULL;
    }
    qv_job_close(job);
    assert_null(*job);
}

static qv_job *
job_open(const struct tiny *t, int n_models, qv_job_options o, struct collector *c)
{
    qv_job *job = collector_job(t, n_models, o, c);
    asker.job = job;
    atomic_store(&asker.stop, false);
    assert_int_equal(pthread_create(&asker.thread, NULL, ask, NULL), 0);
    return job;
}

/* A job of one model, with these options. */
#define job_with(t, c, ...) job_open(t, 1, (qv_job_options){ .chunk_rows = ROWS, __VA_ARGS__ }, c)

/* Ends the job, which must have succeeded. */
static qv_job_progress
job_end(qv_job **job)
{
    qv_job_progress p;
    assert_ok(qv_job_end(*job, ERR));
    qv_job_get_progress(*job, &p);
    assert_int_equal(p.done, p.added);
    assert_int_equal(p.frame_bytes, 0);
    job_close(job);
    return p;
}

/* A key, which stays valid until the next call. */
static const char *
numbered(int i)
{
    static char key[16];
    snprintf(key, sizeof key, "%d", i);
    return key;
}

/* One frame pair of 4x4 patches. */
static qv_job_source
small_source(const char *key, const uint8_t *frames)
{
    return (qv_job_source){ .key = key,
                            .kind = QV_SOURCE_FRAMES,
                            .item = { .data = frames, .grid_thw = { 1, 4, 4 } } };
}

/* ---- frames and patches ---------------------------------------------------------------------- */

/* Small ones, and some that fill chunks of 64 patches, or are larger than one by themselves. */
static const struct {
    int64_t grid_thw[3];
    bool is_image;
} mix[] = {
    { { 1, 2, 2 }, false },  { { 3, 2, 4 }, false },  { { 1, 4, 6 }, true },
    { { 2, 4, 2 }, false },  { { 9, 4, 4 }, false },  { { 1, 6, 6 }, true },
    { { 2, 2, 6 }, true },   { { 1, 8, 2 }, true },   { { 1, 10, 10 }, true },
    { { 2, 2, 2 }, false },  { { 1, 2, 10 }, false }, { { 17, 2, 4 }, false },
    { { 1, 2, 2 }, true },   { { 3, 4, 2 }, false },  { { 1, 4, 4 }, true },
    { { 30, 2, 2 }, false }, { { 1, 6, 4 }, false },  { { 3, 8, 10 }, false },
};
enum { N = sizeof mix / sizeof *mix };

struct mixed {
    qv_job_source sources[N];
    char keys[N][24];
    char *alone[N]; /* what each gives by itself, in the capacity that is the job's for it */
    size_t bytes[N];
};

static int64_t
rows_of(const qv_item *item)
{
    return item->grid_thw[0] * item->grid_thw[1] * item->grid_thw[2];
}

static void *
patches(int64_t n, qv_dtype dtype, uint32_t seed)
{
    void *p = test_alloc((size_t)n * qv_dtype_bytes(dtype));
    for (int64_t i = 0; i < n; i++)
        qv_store(p, dtype, i, (double)(test_random(&seed) >> 8) / 0x1p23 - 1);
    return p;
}

static const size_t value_bytes[] = { [QV_INPUT_FRAMES] = 1,
                                      [QV_INPUT_PATCHES] = sizeof(float),
                                      [QV_INPUT_PATCHES_BF16] = sizeof(uint16_t) };

/* Encodes an item frame pair by frame pair, in the capacity that a job with chunks of the given
 * rows uses for them. A pair has the same bits wherever it lies in a chunk. */
static char *
encode_pairs(const struct tiny *t, qv_input input, const qv_item *item, int64_t rows,
             qv_dtype output, size_t *bytes)
{
    const int64_t *g = item->grid_thw, pairs = g[0];
    const int64_t area = t->info.merge_size * t->info.merge_size;
    const qv_plan_options pack = { .capacity = qv_pack_capacity(t->model, rows, g),
                                   .input = input,
                                   .output = output };
    qv_plan *plan = tiny_plan(t, &pack);
    const size_t row = (size_t)t->info.out_hidden * qv_dtype_bytes(output);
    const size_t pair_rows = (size_t)(g[1] * g[2] / area) * row;
    const size_t pair_bytes = (size_t)(g[1] * g[2] * t->info.row_dim) * value_bytes[input];
    const bool still = item->is_image && input == QV_INPUT_FRAMES; /* every pair is its one frame */
    *bytes = (size_t)pairs * pair_rows * (size_t)(1 + t->info.n_deepstack);
    char *tokens = test_alloc(*bytes);
    for (int64_t p = 0; p < pairs; p++) {
        qv_item piece = *item;
        piece.data = (const char *)item->data + (still ? 0 : (size_t)p * pair_bytes);
        piece.grid_thw[0] = 1;
        size_t n;
        char *one = tiny_chunk(t, plan, &piece, 1, output, &n);
        for (int i = 0; i < 1 + t->info.n_deepstack; i++)
            memcpy(tokens + (size_t)(i * pairs + p) * pair_rows, one + (size_t)i * pair_rows,
                   pair_rows);
    }
    test_end(plan);
    return tokens;
}

static struct mixed *
mixed_make(const struct tiny *t, qv_dtype output)
{
    static const struct {
        qv_source_kind kind;
        qv_input input;
        qv_dtype dtype;
    } kinds[] = { { QV_SOURCE_FRAMES, QV_INPUT_FRAMES, QV_U8 },
                  { QV_SOURCE_PATCHES, QV_INPUT_PATCHES, QV_F32 },
                  { QV_SOURCE_PATCHES_BF16, QV_INPUT_PATCHES_BF16, QV_BF16 } };
    struct mixed *m = test_ends(calloc(1, sizeof *m), free);
    for (int i = 0; i < N; i++) {
        const int64_t *g = mix[i].grid_thw;
        const int of = i % 5 < 3 ? i % 5 : 0; /* most are frames */
        qv_job_source *s = &m->sources[i];
        snprintf(m->keys[i], sizeof m->keys[i], "item %d", i);
        s->key = m->keys[i];
        s->kind = kinds[of].kind;
        s->item.is_image = mix[i].is_image;
        memcpy(s->item.grid_thw, g, sizeof s->item.grid_thw);
        s->item.data =
            of ? patches(rows_of(&s->item) * t->info.row_dim, kinds[of].dtype, (uint32_t)i)
               : tiny_frames(t, mix[i].is_image ? 1 : 2 * g[0], g[1], g[2], (uint32_t)i);
        m->alone[i] = encode_pairs(t, kinds[of].input, &s->item, ROWS, output, &m->bytes[i]);
    }
    return m;
}

static void
expect_alone(const struct tiny *t, struct collector *c, const struct mixed *m, int i,
             qv_dtype output)
{
    struct got *g = find(c, m->keys[i]);
    if (g->lasts != 1 || g->status)
        fail_msg("%s: %d last calls, %s %s", g->key, g->lasts, qv_status_name(g->status), g->error);
    assert_int_equal(g->n, g->n_tokens);
    assert_int_equal(g->n, rows_of(&m->sources[i].item) / 4);
    const size_t values = m->bytes[i] / qv_dtype_bytes(output);
    if (!tiny_same(g->tokens, m->alone[i], values, output))
        fail_msg("%s has other bits than alone", g->key);
}

/* Returns how many chunks the items would take if none shared one. */
static int64_t
chunks_unshared(const struct tiny *t, const struct mixed *m)
{
    int64_t chunks = 0;
    for (int i = 0; i < N; i++) {
        const int64_t *g = m->sources[i].item.grid_thw;
        const qv_capacity chunk = qv_pack_capacity(t->model, ROWS, g);
        const qv_capacity pair = qv_capacity_of(&t->model->config, (int64_t[3]){ 1, g[1], g[2] });
        const int64_t fits = qv_capacity_fits(&chunk, &pair);
        chunks += (g[0] + fits - 1) / fits;
    }
    return chunks;
}

/* turn: which order, and so on. */
static void
run_mixed(const struct tiny *t, int n_models, const struct mixed *m, int turn, qv_dtype output)
{
    struct collector *c = collector_make(t);
    const qv_job_options o = { .output = output,
                               .chunk_rows = ROWS,
                               .decoders = 1 + turn % 4,
                               .sinks = 1 + turn % 3,
                               .queue = turn % 2 ? 3 : 0 };
    qv_job *job = job_open(t, n_models, o, c);
    for (int i = 0; i < N; i++)
        job_add(job, &m->sources[turn % 2 ? N - 1 - i : (i * 5 + turn) % N]);
    const qv_job_progress p = job_end(&job);
    assert_int_equal(p.done, N);
    assert_int_equal(p.failed, 0);
    assert_int_equal(p.packed, N);
    if (turn % 2 == 0) /* a wait of a millisecond */
        assert_true(p.packed_chunks < chunks_unshared(t, m));
    assert_int_equal(p.most_frame_bytes, 0); /* they are the caller's */
    assert_true(c->most_at_once <= 1 + turn % 3);
    for (int i = 0; i < N; i++)
        expect_alone(t, c, m, i, output);
}

static void
check_family(const char *dir, const char *backend)
{
    struct tiny t = tiny_open_family(dir, backend, QV_F32, 1);
    for (int type = 0; type < 2; type++) {
        struct mixed *m = mixed_make(&t, type ? QV_BF16 : QV_F32);
        for (int turn = 0; turn < 4; turn++)
            run_mixed(&t, 1, m, turn, type ? QV_BF16 : QV_F32);
    }
}

/* Tokens have the same bits in any order of the sources, with DeepStack's outputs and
 * with windows. */
TEST(any_order_gives_the_same_bits)
{
    EACH_TRIED (on) {
        check_family(QV_GOLDEN "/qwen3_vl_moe", *on);
        check_family(QV_GOLDEN "/qwen2_5_vl", *on);
    }
}

struct hidden {
    float *rows; /* what the item gives by itself */
    int64_t values, seen;
};

static qv_status
compare_hidden(void *user, void *entry, const qv_job_result *r, const qv_job_rows *rows,
               qv_error *err)
{
    struct hidden *h = r->user;
    const int64_t each = h->values / r->n_tokens, n = rows->tokens.n * each;
    (void)user;
    (void)entry;
    (void)err;
    assert_int_equal(rows->first * each, h->seen);
    assert_memory_equal(rows->tokens.hidden, h->rows + h->seen, (size_t)n * sizeof *h->rows);
    h->seen += n;
    return QV_OK;
}

/* The last block's rows are those of the item by itself, in chunks with others and over several
 * chunks. */
TEST(hidden_rows_come_with_their_tokens)
{
    const char *const families[] = { QV_GOLDEN "/qwen3_vl_moe", QV_GOLDEN "/qwen2_5_vl" };
    EACH (family, families) {
        struct tiny t = tiny_open_family(*family, "ref", QV_F32, 1);
        struct mixed *m = mixed_make(&t, QV_F32);
        struct hidden hidden[N];
        const qv_plan_options alone = { .capacity.patches = ROWS, .hidden = true };
        for (int i = 0; i < N; i++) {
            const qv_job_source *s = &m->sources[i];
            const int64_t n = rows_of(&s->item);
            hidden[i] = (struct hidden){ .values = n * t.info.hidden };
            hidden[i].rows = test_alloc((size_t)hidden[i].values * sizeof(float));
            qv_tokens out = { .hidden = hidden[i].rows, .capacity = n };
            assert_ok(qv_encode(t.model, (qv_input)(s->kind - QV_SOURCE_FRAMES), &s->item, 1,
                                &alone, &out, ERR));
            m->sources[i].user = &hidden[i];
        }
        const qv_job_options o = { .chunk_rows = ROWS,
                                   .hidden = true,
                                   .sink.rows = compare_hidden };
        qv_job *job = NULL;
        assert_ok(qv_job_open(&t.model, 1, &o, &job, ERR));
        for (int i = 0; i < N; i++)
            job_add(job, &m->sources[i]);
        assert_int_equal(job_end(&job).failed, 0);
        for (int i = 0; i < N; i++)
            assert_int_equal(hidden[i].seen, hidden[i].values);
    }
}

/* Each item on one of two devices: here one that is slow and one that is quick. */
TEST(several_devices_share_the_work)
{
    const char *const pairs[][2] = { { "ref", "ref" },
#ifdef QV_WITH_CPU
                                     { "ref", "cpu" },
                                     { "cpu", "cpu" }
#endif
    };
    EACH (it, pairs) {
        struct tiny t[2];
        struct mixed *m[2];
        if (!is_tried((*it)[0]) || !is_tried((*it)[1]))
            continue;
        for (int i = 0; i < 2; i++) {
            t[i] = tiny_open_family(QV_GOLDEN "/qwen3_vl_moe", (*it)[i], QV_F32, 1);
            m[i] = mixed_make(&t[i], QV_F32);
        }
        struct collector *c = collector_make(t);
        c->slow = 1000; /* so that more pieces wait than there are sinks */
        qv_job *job =
            job_open(t, 2, (qv_job_options){ .chunk_rows = ROWS, .decoders = 2, .sinks = 2 }, c);
        for (int i = 0; i < N; i++)
            job_add(job, &m[0]->sources[i]);
        const qv_job_progress p = job_end(&job);
        assert_int_equal(p.devices, 2);
        assert_int_equal(p.failed, 0);
        for (int i = 0; i < N; i++) {
            const struct got *g = find(c, m[0]->keys[i]);
            assert_int_equal(g->lasts, 1);
            assert_int_equal(g->n, g->n_tokens);
            const size_t values = m[0]->bytes[i] / 4;
            /* of one device whole, or of the other */
            if (!tiny_same(g->tokens, m[0]->alone[i], values, QV_F32) &&
                !tiny_same(g->tokens, m[1]->alone[i], values, QV_F32))
                fail_msg("%s is of neither device", g->key);
        }
    }
}

/* Jobs of one model take turns at its device. One that was cancelled keeps nobody from it, even
 * before it is closed. */
TEST(jobs_of_one_model_run_side_by_side)
{
    enum { JOBS = 3 };
    struct tiny t = tiny_open_family(QV_GOLDEN "/qwen3_vl_moe", "ref", QV_F32, 1);
    t.ctx->caps.chunks = 2;
    struct mixed *m = mixed_make(&t, QV_F32);
    for (int round = 0; round < 5; round++) {
        struct collector *c[JOBS];
        qv_job *jobs[JOBS];
        for (int j = 0; j < JOBS; j++) {
            c[j] = collector_make(&t);
            jobs[j] =
                collector_job(&t, 1, (qv_job_options){ .chunk_rows = ROWS, .decoders = 2 }, c[j]);
        }
        for (int i = 0; i < N; i++)
            for (int j = 0; j < JOBS; j++)
                job_add(jobs[j], &m->sources[i]);
        qv_job_cancel(jobs[2]);
        for (int j = 0; j < 2; j++) {
            assert_ok(qv_job_end(jobs[j], ERR));
            for (int i = 0; i < N; i++)
                expect_alone(&t, c[j], m, i, QV_F32);
        }
        for (int j = 0; j < JOBS; j++)
            qv_job_close(&jobs[j]);
    }
}

/* Backends of two devices. The second one is lost after some chunks, and both have little host
 * memory. */
static const struct qv_backend *sound;
static atomic_int chunks_left;
static size_t most_bytes;

static qv_status
run_or_lose(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    if (n > 1 && atomic_fetch_sub(&chunks_left, 1) <= 0)
        return qv_fail(err, QV_EBACKEND, "it fell off the bus");
    return sound->run(dev, calls, n, err);
}

static qv_status
run_slowly(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    usleep(n > 1 ? 2000 : 0);
    return sound->run(dev, calls, n, err);
}

static qv_status
lock_few_pages(struct qv_device *dev, size_t bytes, void **out, qv_error *err)
{
    return bytes > most_bytes ? qv_fail(err, QV_ENOMEM, "no memory for %zu bytes", bytes)
                              : lock_pages(dev, bytes, out, err);
}

/* A lost device fails only its chunks in progress; the other device goes on. The job ends when no
 * device is left, and reports that. */
static int losses_told;

static void
count_loss(void *user, qv_status status, const char *words)
{
    assert_int_equal(status, QV_EBACKEND);
    assert_non_null(strstr(words, "off the bus"));
    losses_told++;
}

TEST(a_lost_device_costs_what_was_on_it)
{
    struct tiny t[2];
    for (int i = 0; i < 2; i++) {
        t[i] = tiny_open_family(QV_GOLDEN "/qwen3_vl_moe", "ref", QV_F32, 1);
        t[i].ctx->caps.chunks = 2;
    }
    struct mixed *m = mixed_make(t, QV_F32);
    sound = t[0].ctx->backend;
    struct qv_backend losing = *sound, slow = *sound;
    losing.run = run_or_lose;
    slow.run = run_slowly;
    t[1].ctx->backend = &losing;
    int n_lost = 0;
    for (int round = 0; round < 16; round++) { /* where it is lost depends on the threads, too */
        const int after = round % 8;
        const bool both = after == 7;
        struct collector *c = collector_make(t);
        atomic_store(&chunks_left, after);
        t[0].ctx->backend = both ? &losing : &slow;
        qv_job *job =
            job_open(t, 2,
                     (qv_job_options){
                         .chunk_rows = ROWS, .decoders = 2, .sinks = 2, .lost = count_loss },
                     c);
        int added = 0, lost = 0;
        losses_told = 0;
        for (; added < N && !qv_job_add(job, &m->sources[added], NULL); added++)
            ;
        qv_job_progress p;
        do
            qv_job_get_progress(job, &p);
        while (!both && p.done < p.added);
        if (!both) { /* others at the lost device need not wait for this job's end */
            qv_turn_take(t[1].ctx);
            qv_turn_end(t[1].ctx);
        }
        expect_error(both ? QV_EBACKEND : QV_OK, both ? "off the bus" : "", qv_job_end(job, ERR));
        assert_int_equal(losses_told, both);
        job_close(&job);
        for (int i = 0; i < added; i++) {
            const struct got *g = find(c, m->keys[i]);
            assert_int_equal(g->lasts, 1);
            assert_true(both || !g->cancelled);
            lost += g->status == QV_EBACKEND && strstr(g->error, "off the bus");
            if (!g->status)
                expect_alone(t, c, m, i, QV_F32);
            else
                assert_int_equal(g->status, QV_EBACKEND);
        }
        assert_true(added == N || both);
        /* a machine that is busy may give the device too few chunks to be lost */
        const bool is_lost = atomic_load(&chunks_left) < 0;
        assert_in_range(lost, is_lost, both ? added : is_lost ? N - 1 : 0);
        n_lost += is_lost;
    }
    assert_in_range(n_lost, 2, 16);
    for (int i = 0; i < 2; i++)
        t[i].ctx->backend = sound;
}

/* A lack of memory for large items' tokens fails only these items. */
TEST(missing_memory_costs_its_item)
{
    struct tiny t = tiny_open_family(QV_GOLDEN "/qwen3_vl_moe", "ref", QV_F32, 1);
    struct mixed *m = mixed_make(&t, QV_F32);
    sound = t.ctx->backend;
    struct qv_backend poor = *sound;
    poor.lock_pages = lock_few_pages;
    poor.unlock_pages = unlock_pages;
    t.ctx->backend = t.ctx->dev->backend = &poor;
    most_bytes = (size_t)(ROWS / 4 * (1 + t.info.n_deepstack) * t.info.out_hidden) * 4 + 128;
    struct collector *c = collector_make(&t);
    qv_job *job = job_open(&t, 1, (qv_job_options){ .chunk_rows = ROWS }, c);
    for (int i = 0; i < N; i++)
        job_add(job, &m->sources[i]);
    const qv_job_progress p = job_end(&job);
    int64_t large = 0;
    for (int i = 0; i < N; i++) {
        const int64_t *g = mix[i].grid_thw;
        if (g[1] * g[2] > ROWS) {
            large++;
            assert_int_equal(find(c, m->keys[i])->status, QV_ENOMEM);
            assert_int_equal(find(c, m->keys[i])->n, 0);
        } else {
            expect_alone(&t, c, m, i, QV_F32);
        }
    }
    assert_int_equal(p.failed, large);
    assert_true(large > 0);
    tiny_close(&t); /* its pages are unlocked by this backend */
}

/* ---- clips in several chunks ----------------------------------------------------------------- */

enum { LONG = 24 };

/* Clips of up to 16 frame pairs of five sizes, which chunks of 64 patches hold a few of. */
struct longs {
    qv_job_source sources[LONG];
    char keys[LONG][24];
    char *alone[LONG];
};

static struct longs *
longs_make(const struct tiny *t)
{
    static const int64_t sides[][2] = { { 2, 4 }, { 4, 4 }, { 4, 6 }, { 2, 10 }, { 6, 6 } };
    struct longs *l = test_ends(calloc(1, sizeof *l), free);
    for (int i = 0; i < LONG; i++) {
        const int64_t g[3] = { 1 + i * 7 % 16, sides[i % 5][0], sides[i % 5][1] };
        size_t bytes;
        snprintf(l->keys[i], sizeof l->keys[i], "long %d", i);
        l->sources[i] = (qv_job_source){ .key = l->keys[i],
                                         .ticket = (uint64_t)i % 2,
                                         .kind = QV_SOURCE_FRAMES,
                                         .item = { .data = tiny_frames(t, 2 * g[0] - i % 2, g[1],
                                                                       g[2], (uint32_t)i),
                                                   .grid_thw = { g[0], g[1], g[2] },
                                                   .n_frames = 2 * g[0] - i % 2 } };
        qv_item whole =
            l->sources[i].item; /* its odd last frame twice, as each pair by itself needs it */
        uint8_t *even = tiny_frames(t, 2 * g[0], g[1], g[2], (uint32_t)i);
        const size_t frame = (size_t)(g[1] * g[2] * t->info.patch_size * t->info.patch_size * 3);
        if (i % 2)
            memcpy(even + (size_t)(2 * g[0] - 1) * frame, even + (size_t)(2 * g[0] - 2) * frame,
                   frame);
        whole.data = even;
        whole.n_frames = 0;
        l->alone[i] = encode_pairs(t, QV_INPUT_FRAMES, &whole, ROWS, QV_F32, &bytes);
    }
    return l;
}

/* A clip's received tokens, all or only the first ones, equal the tokens of its pairs alone. */
static void
expect_begin(const struct tiny *t, const struct got *g, const char *alone)
{
    const size_t row = (size_t)t->info.out_hidden * sizeof(float);
    for (int i = 0; i < 1 + t->info.n_deepstack && g->n; i++) {
        const size_t at = (size_t)(i * g->n_tokens) * row;
        if (!tiny_same(g->tokens + at, alone + at, (size_t)(g->n * t->info.out_hidden), QV_F32))
            fail_msg("%s: its tokens are not those of its pairs", g->key);
    }
}

enum ending { GOES_WELL, SINK_FAILS, ODD_ARE_DROPPED, IS_CANCELLED, ENDINGS };

static void
run_longs(const struct tiny *t, int n_models, const struct longs *l, enum ending how)
{
    struct collector *c = collector_make(t);
    c->slow = how >= ODD_ARE_DROPPED ? 2000 : 0;
    c->fails = how == SINK_FAILS ? l->keys[9] : NULL; /* of 16 pairs, at the first of its calls */
    c->how = QV_EIO;
    qv_job *job =
        job_open(t, n_models, (qv_job_options){ .chunk_rows = ROWS, .decoders = 3, .sinks = 2 }, c);
    for (int i = 0; i < LONG; i++)
        job_add(job, &l->sources[i]);
    qv_job_progress p = { 0 };
    while (how >= ODD_ARE_DROPPED && p.chunks < 5)
        qv_job_get_progress(job, &p);
    const size_t dropped = how == ODD_ARE_DROPPED ? qv_job_drop(job, NULL, 1) : 0;
    if (how == IS_CANCELLED) {
        qv_job_cancel(job);
        assert_ok(qv_job_end(job, ERR));
        job_close(&job);
    } else {
        p = job_end(&job);
        assert_int_equal(p.failed, how == SINK_FAILS ? 1 : dropped);
        assert_true(how != ODD_ARE_DROPPED || dropped);
    }
    int calls = 0, whole = 0;
    for (int i = 0; i < LONG; i++) {
        const struct got *g = find(c, l->keys[i]);
        assert_int_equal(g->lasts, 1);
        calls += g->calls;
        whole += !g->status;
        assert_true(g->status || g->n == g->n_tokens);
        assert_true(g->cancelled == (g->status && how >= ODD_ARE_DROPPED));
        assert_true(how != ODD_ARE_DROPPED || i % 2 || !g->status);
        expect_begin(t, g, l->alone[i]);
    }
    if (how < ODD_ARE_DROPPED)
        assert_true(calls > LONG + 10); /* most lie in several chunks */
    if (how == IS_CANCELLED)
        assert_true(whole < LONG);
    else
        assert_int_equal(whole, LONG - (how == SINK_FAILS ? 1 : dropped));
    if (how == GOES_WELL && t->model->ctx->caps.bucket_rows == 4) {
        const double full =
            (double)(p.rows - p.rest_rows) / (double)(p.capacity_rows - p.rest_capacity_rows);
        assert_true(full >= 0.95); /* of as few as 64 patches */
    }
}

/* Frame pairs are packed, so that a clip lies in several chunks. Its tokens come in their order,
 * all from one device, and are those of its pairs; so it is too if its sink fails between its
 * calls, or if it is dropped or the job is cancelled while calls are in progress. */
TEST(clips_lie_in_several_chunks)
{
    EACH_TRIED (on) {
        struct tiny t[2];
        for (int i = 0; i < 2; i++)
            t[i] = tiny_open_family(QV_GOLDEN "/qwen3_vl_moe", *on, QV_F32, 1);
        struct longs *l = longs_make(t);
        for (int how = 0; how < ENDINGS; how++)
            for (int n = 1; n <= 2; n++)
                run_longs(t, n, l, (enum ending)how);
    }
}

/* Opens a golden tower with another text in its config.json, as long as the one it replaces. */
static struct tiny
open_changed(const char *family, const char *text, const char *other)
{
    static const char *const same[] = { "model.safetensors", "preprocessor_config.json" };
    char path[600], folder[512], name[64];
    snprintf(folder, sizeof folder, "%s", temp_path(family));
    assert_int_equal(mkdir(folder, 0777), 0);
    snprintf(path, sizeof path, QV_GOLDEN "/%s/config.json", family);
    struct file config = read_file(path);
    char *at = memmem(config.data, config.bytes, text, strlen(text));
    assert_non_null(at);
    memcpy(at, other, strlen(text));
    snprintf(name, sizeof name, "%s/config.json", family);
    temp_file(name, config.data, config.bytes);
    EACH (c, same) {
        snprintf(path, sizeof path, QV_GOLDEN "/%s/%s", family, *c);
        snprintf(name, sizeof name, "%s/%s", family, *c);
        assert_int_equal(symlink(path, temp_path(name)), 0);
    }
    return tiny_open_family(folder, "ref", QV_F32, 1);
}

/* A frame pair that is two patches high has twice the windows that a chunk of its rows has room
 * for. It goes to the chunk that suits it by itself, whether its rows fit a pack or not. */
TEST(thin_items_have_many_windows)
{
    enum { PACK = 320 };
    static const int64_t grids[][3] = { { 2, 2, 160 }, { 1, 160, 2 }, { 3, 2, 102 }, { 1, 2, 78 } };
    enum { THIN = sizeof grids / sizeof *grids };
    struct tiny t = open_changed("qwen2_5_vl", "\"window_size\": 8", "\"window_size\":16");
    struct collector *c = collector_make(&t);
    qv_job *job = job_open(&t, 1, (qv_job_options){ .chunk_rows = PACK }, c);
    qv_item items[THIN];
    static const char *const keys[THIN] = { "0", "1", "2", "3" };
    for (int i = 0; i < THIN; i++) {
        const int64_t *g = grids[i];
        items[i] = (qv_item){ .data = tiny_frames(&t, 2 * g[0], g[1], g[2], (uint32_t)i),
                              .grid_thw = { g[0], g[1], g[2] } };
        job_add(job,
                &(qv_job_source){ .key = keys[i], .kind = QV_SOURCE_FRAMES, .item = items[i] });
    }
    assert_int_equal(job_end(&job).failed, 0);
    for (int i = 0; i < THIN; i++) {
        const struct got *g = find(c, keys[i]);
        size_t bytes;
        char *alone = tiny_encode(&t, QV_INPUT_FRAMES, &items[i], 1, NULL, &bytes);
        assert_int_equal(g->lasts, 1);
        assert_int_equal(g->n, g->n_tokens);
        assert_true(tiny_same(g->tokens, alone, bytes / sizeof(float), QV_F32));
    }
}

/* Returns whether a dense plan was made for chunks of the given segments and rows. */
static bool
has_dense_plan(const qv_model *model, int64_t segments, int64_t rows)
{
    for (int i = 0; i < model->n_idle; i++)
        if (model->idle[i]->capacity.segments == segments &&
            model->idle[i]->capacity.segment_rows == rows)
            return true;
    return false;
}

/* If plans are slow to make, chunks that leave much empty get a dense plan from the third on. Here
 * 5 chunks of 2 pairs are followed by one of a single pair, which takes half of a pack. */
TEST(few_plans_are_made)
{
    for (int under_way = 1; under_way <= 2; under_way++) {
        enum { PAIR = 24, PAIRS = 11 };
        struct tiny t = tiny_open("ref", QV_F32, 1);
        t.ctx->caps.quick_plans = false;
        t.ctx->caps.chunks = under_way;
        uint8_t *frames = tiny_frames(&t, 2 * PAIRS, 4, 6, 1);
        struct collector *c = collector_make(&t);
        const qv_item item = { .data = frames, .grid_thw = { PAIRS, 4, 6 } };
        qv_job *job = job_open(&t, 1, (qv_job_options){ .chunk_rows = ROWS }, c);
        job_add(job, &(qv_job_source){ .key = "a", .kind = QV_SOURCE_FRAMES, .item = item });
        const qv_job_progress p = job_end(&job);
        assert_int_equal(p.chunks, 6);
        assert_int_equal(p.capacity_rows, 2 * ROWS + 3 * 2 * PAIR + ROWS / 2);
        assert_true(has_dense_plan(t.model, 2, PAIR));
    }
}

static qv_status
keep_result(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    *(qv_outcome *)user = r->outcome;
    assert_true(r->outcome.sampled_fps > 0 ? r->timestamps_s[1] == 0.25 : !r->timestamps_s);
    return r->status;
}

/* A result has what the caller knows of the frames. */
TEST(frames_bring_their_seconds_and_rate)
{
    static const double seconds[2] = { 0, 0.25 };
    uint8_t *frames = tiny_frames(&usual, 2, 4, 4, 1);
    for (int known = 0; known < 2; known++) {
        qv_outcome got;
        qv_job *job = NULL;
        const qv_job_options o = { .sink = { .end = keep_result, .user = &got } };
        qv_job_source s = small_source("a", frames);
        s.timestamps_s = known ? seconds : NULL;
        s.sampled_fps = known ? 4 : 0;
        assert_ok(qv_job_open(&usual.model, 1, &o, &job, ERR));
        job_add(job, &s);
        job_end(&job);
        assert_int_equal(got.n_frames, 2);
        assert_true(got.sampled_fps == 4 * known && got.second_per_grid_ts == 0.5 * known);
    }
}

/* ---- sources that are dropped ---------------------------------------------------------------- */

/* Of 400 sources every other one is dropped while the sink waits, so that some are in chunks, some
 * in the feeder, and some are not taken up. */
TEST(what_is_dropped_is_not_computed)
{
    enum { MANY = 400, GONE = MANY / 2, UNDER_WAY = 3 * ROWS / 16 };
    uint8_t *frames = tiny_frames(&usual, 2, 4, 4, 1);
    qv_job *job = job_with(&usual, kept, .queue = MANY);
    pthread_mutex_lock(&kept->lock); /* calls of the sink wait for it */
    for (int i = 0; i < MANY; i++) {
        job_add(job, &(qv_job_source){ .key = numbered(i),
                                       .kind = QV_SOURCE_FRAMES,
                                       .ticket = i % 2 ? 7 : 8 + (uint64_t)i,
                                       .item = { .data = frames, .grid_thw = { 1, 4, 4 } } });
    }
    qv_job_progress p;
    do /* until the sink waits with the first rows */
        qv_job_get_progress(job, &p);
    while (!p.chunks);
    assert_int_equal(qv_job_drop(job, NULL, 0) + qv_job_drop(job, NULL, 1), 0);
    assert_in_range(qv_job_drop(job, NULL, 7), GONE - 1, GONE);
    assert_int_equal(qv_job_drop(job, NULL, 7), 0);
    assert_int_equal(qv_job_drop(job, NULL, 8 + MANY - 2), 1);
    pthread_mutex_unlock(&kept->lock);
    p = job_end(&job);
    assert_in_range(p.failed, GONE, GONE + 1);
    assert_true(p.rows <= (MANY - GONE + UNDER_WAY) * 16);
    assert_int_equal(kept->n, MANY);
    for (int i = 0; i < MANY; i++) {
        const struct got *g = find(kept, numbered(i));
        assert_int_equal(g->lasts, 1);
        assert_true(i == 1 || g->cancelled == (i % 2 == 1 || i == MANY - 2));
        assert_int_equal(g->status, g->cancelled ? QV_ESTATE : QV_OK);
        assert_int_equal(g->n, g->cancelled ? 0 : 4);
        if (g->cancelled)
            assert_non_null(strstr(g->error, "it was dropped"));
    }
}

/* ---- sources that are wrong ------------------------------------------------------------------ */

TEST(sources_are_checked_when_they_are_added)
{
    qv_job *job = job_with(&usual, kept, .decoders = 1);
    uint8_t *frames = tiny_frames(&usual, 2, 4, 4, 1);
    const qv_job_source good = small_source("good", frames);
    qv_job_source odd = good, grid = good, count = good, data = good, kind = good, none = good,
                  bytes = good, path = good, large = good, rate = good;
    odd.item.grid_thw[1] = 3;
    grid.item.grid_thw[0] = 0;
    count.item.n_frames = 3;
    data.item.data = NULL;
    kind.kind = (qv_source_kind)7;
    none.key = NULL;
    bytes.kind = QV_SOURCE_BYTES;
    path.kind = QV_SOURCE_PATH;
    large.kind = QV_SOURCE_BYTES;
    large.bytes = frames;
    large.n_bytes = SIZE_MAX;
    rate.sampled_fps = NAN;
    const struct {
        const qv_job_source *source;
        const char *words;
    } wrong[] = { { &odd, "good|1,3,4" },
                  { &grid, "good|0,4,4" },
                  { &count, "n_frames is 3" },
                  { &data, "data is NULL" },
                  { &kind, "kind is 7" },
                  { &none, "no key" },
                  { &bytes, "bytes" },
                  { &path, "path is NULL" },
                  { &large, "good: n_bytes is 18446744073709551615" },
                  { &rate, "good: sampled_fps is nan" } };
    EACH (one, wrong) {
        qv_error err = { 0 };
        qv_status status = qv_job_add(job, one->source, &err);
        expect_failure(one->words, QV_EINVAL, one->words, status, &err);
    }
    job_add(job, &good);
    assert_ok(qv_job_end(job, ERR));
    expect_error(QV_ESTATE, "good|ended", qv_job_add(job, &good, ERR));
    job_close(&job);
    assert_int_equal(kept->n, 1);
    assert_int_equal(kept->got[0].status, QV_OK);
}

TEST(options_are_checked)
{
    struct tiny t = tiny_open("ref", QV_F32, 1), other = tiny_open("ref", QV_F32, 1);
    struct tiny moe = tiny_open_family(QV_GOLDEN "/qwen3_vl_moe", "ref", QV_F32, 1);
    qv_model *const one[] = { t.model, t.model }, *const odd[] = { t.model, moe.model };
    static const double mean[3] = { 0.25, 0.5, 0.5 };
    struct tiny means =
        tiny_open_model(QV_GOLDEN "/qwen3_vl", "ref",
                        &(qv_model_options){ .dtype = QV_F32, .image_mean = mean }, 1);
    struct tiny heads = open_changed("qwen3_vl", "\"num_heads\": 2", "\"num_heads\": 1");
    qv_model *const weights[] = { t.model, other.model }, *const means_of[] = { t.model,
                                                                                means.model };
    qv_model *const heads_of[] = { t.model, heads.model };
    snprintf(other.model->weights.digest, sizeof other.model->weights.digest, "of others");
    snprintf(other.model->identity, sizeof other.model->identity, "another");
    const struct {
        qv_model *const *models;
        size_t n;
        qv_job_options o;
        const char *words;
    } wrong[] = {
        { one, 0, { 0 }, "n_models is 0" },
        { one, 2, { 0 }, "0 and 1 are the same object" },
        { odd, 2, { 0 }, "model 1 is qwen3_vl_moe" },
        { weights, 2, { 0 }, "with weights of others; the first" },
        { means_of, 2, { 0 }, "model 1 is|but different numbers in its preprocessor files" },
        { heads_of, 2, { 0 }, "model 1 is|but different numbers in config.json" },
        { one, 1, { .decoders = -1 }, "decoders is -1" },
        { one, 1, { .sinks = 1 << 20 }, "sinks is 1048576" },
        { one, 1, { .memory = -5 }, "memory is -5" },
        { one, 1, { .ahead = -1 }, "ahead is -1" },
        { one, 1, { .output = QV_U8 }, "output is u8" },
        { one, 1, { .chunk_rows = -1 }, "chunk_rows is -1; it must be from 0 to" },
        { one, 1, { .chunk_rows = INT32_MAX }, "patches is 2147483648; it must be" },
    };
    EACH (c, wrong) {
        qv_job *job = NULL;
        qv_error err = { 0 };
        qv_status status = qv_job_open(c->models, c->n, &c->o, &job, &err);
        expect_failure(c->words, QV_EINVAL, c->words, status, &err);
        assert_null(job);
    }
}

/* The sink refuses one source in each of its calls; the other sources are not affected. */
TEST(a_sink_refuses_one)
{
    struct tiny t = tiny_open_family(QV_GOLDEN "/qwen3_vl_moe", "ref", QV_F32, 1);
    struct mixed *m = mixed_make(&t, QV_F32);
    static const int refused[] = { 0, 4, 15 }; /* a small one, and two of several chunks */
    for (int turn = 0; turn < 9; turn++) {
        const int where = turn / 3, which = refused[turn % 3];
        struct collector *c = collector_make(&t);
        c->fails = m->keys[which];
        c->where = where;
        c->how = where == IN_END ? QV_EIO : QV_ENOMEM;
        qv_job *job = job_open(&t, 1, (qv_job_options){ .chunk_rows = ROWS }, c);
        for (int i = 0; i < N; i++)
            job_add(job, &m->sources[i]);
        const qv_job_progress p = job_end(&job);
        assert_int_equal(p.failed, 1);
        for (int i = 0; i < N; i++)
            if (i != which)
                expect_alone(&t, c, m, i, QV_F32);
        const struct got *g = find(c, c->fails);
        assert_int_equal(g->begins, 1);
        assert_int_equal(g->lasts, 1);
        assert_true(where == IN_END ? g->calls > (turn % 3) : g->calls == (where == IN_ROWS));
        assert_int_equal(g->status, where == IN_END ? QV_OK : QV_ENOMEM);
        assert_true(where == IN_END || strstr(g->error, "the sink refuses it"));
    }
}

/* A source that failed before it was added gets its end call in its turn, without an entry. */
TEST(a_source_that_has_failed_is_told_of)
{
    qv_job *job = job_open(&usual, 1, (qv_job_options){ .chunk_rows = ROWS }, kept);
    qv_job_source s = { .key = "row 3", .status = QV_EFORMAT, .error = "row 3 is no row" };
    s.path = (const char *)(uintptr_t)16; /* as all other fields, it is not used */
    s.bytes = s.path;
    s.kind = (qv_source_kind)99;
    job_add(job, &s);
    s.status = QV_EBACKEND;
    expect_error(QV_EINVAL, "row 3|QV_EBACKEND", qv_job_add(job, &s, ERR));
    const qv_job_progress p = job_end(&job);
    assert_int_equal(p.done, 1);
    assert_int_equal(p.failed, 1);
    const struct got *g = find(kept, "row 3");
    assert_int_equal(g->lasts, 1);
    assert_int_equal(g->begins + g->calls, 0);
    assert_int_equal(g->status, QV_EFORMAT);
    assert_string_equal(g->error, "row 3 is no row");
}

/* Every source is reported once; unfinished sources are reported as cancelled. */
static void
check_ended(struct collector *c, int n, qv_status status, const char *words)
{
    int cancelled = 0;
    assert_int_equal(c->n, n);
    for (int i = 0; i < n; i++) {
        const struct got *g = &c->got[i];
        assert_int_equal(g->lasts, 1);
        cancelled += g->cancelled;
        if (g->cancelled) {
            assert_int_equal(g->status, status);
            assert_non_null(strstr(g->error, words));
        }
    }
    assert_true(cancelled > 0);
}

TEST(what_is_no_matter_of_one_source_ends_all)
{
    struct tiny t = tiny_open_family(QV_GOLDEN "/qwen3_vl_moe", "ref", QV_F32, 1);
    struct mixed *m = mixed_make(&t, QV_F32);
    /* a sink without memory */
    struct collector *c = collector_make(&t);
    c->fails = m->keys[N / 2];
    c->how = QV_ENOMEM;
    c->where = IN_END;
    c->slow = 2000;
    qv_job *job = job_open(&t, 1, (qv_job_options){ .chunk_rows = ROWS }, c);
    int added = 0;
    for (; added < N && !qv_job_add(job, &m->sources[added], NULL); added++)
        ;
    expect_error(QV_ENOMEM, "the sink refuses it", qv_job_end(job, ERR));
    job_close(&job);
    check_ended(c, added, QV_ENOMEM, "the sink refuses it");
    /* a device that cannot compute */
    const qv_model_options o = { .dtype = QV_F32, .describe = true };
    const struct tiny described = tiny_open_model(QV_GOLDEN "/qwen3_vl_moe", "ref", &o, 0);
    c = collector_make(&t);
    job = job_open(&described, 1, (qv_job_options){ .chunk_rows = ROWS }, c);
    for (added = 0; added < N && !qv_job_add(job, &m->sources[added], NULL); added++)
        ;
    expect_error(QV_ESTATE, "no weights", qv_job_end(job, ERR));
    expect_error(QV_ESTATE, "no weights", qv_job_add(job, &m->sources[0], ERR));
    job_close(&job);
    check_ended(c, added, QV_ESTATE, "no weights");
}

/* Closed in the middle, cancelled before that or not; and a queue that is full. */
TEST(a_job_is_closed_early)
{
    struct tiny t = tiny_open_family(QV_GOLDEN "/qwen3_vl_moe", "ref", QV_F32, 1);
    struct mixed *m = mixed_make(&t, QV_F32);
    for (int turn = 0; turn < 8; turn++) {
        struct collector *c = collector_make(&t);
        c->slow = 20000;
        qv_job *job =
            job_with(&t, c, .decoders = 1 + turn % 3, .queue = 2, .refuse_when_full = turn % 2);
        int added = 0;
        qv_error err = { 0 };
        for (int i = 0; i < 3 * N && !err.status; i++) {
            struct qv_job_source s = m->sources[i % N];
            char key[32];
            snprintf(key, sizeof key, "%d of %d", i, turn);
            s.key = key;
            added += !qv_job_add(job, &s, &err);
            if (i == N / 2 + turn && turn % 2 == 0)
                break;
        }
        if (turn % 2)
            expect_failure("full", QV_EFULL, "2 sources are waiting", err.status, &err);
        usleep((useconds_t)turn * 3000);
        if (turn >= 4) {
            qv_job_cancel(job);
            assert_int_equal(qv_job_add(job, &m->sources[0], NULL), QV_ESTATE);
            assert_ok(qv_job_end(job, ERR));
            assert_int_equal(c->n, added);
        }
        job_close(&job);
        assert_int_equal(c->n, added);
        for (int i = 0; i < c->n; i++)
            assert_int_equal(c->got[i].lasts, 1);
    }
}

/* An item does not wait for a chunk that does not fill, even while another item is being read. */
TEST(nothing_waits_for_ever)
{
    uint8_t *frames = tiny_frames(&usual, 2, 4, 4, 1);
    qv_job *job = job_open(&usual, 1, (qv_job_options){ .chunk_rows = ROWS }, kept);
    for (int i = 0; i < 20; i++) {
        const qv_job_source s = small_source(numbered(i), frames);
        job_add(job, &s);
        for (int waited = 0;; waited++) {
            qv_job_progress p;
            qv_job_get_progress(job, &p);
            if (p.done == i + 1)
                break;
            assert_true(waited < 5000);
            usleep(1000);
        }
    }
    job_end(&job);
}

/* ---- clips ----------------------------------------------------------------------------------- */

/* Frames of 4:2:0 in the plainest of containers, from a seed. */
static const char *
clip_write(const char *name, int n_frames, int width, int height, unsigned seed)
{
    const char *path = temp_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fprintf(f, "YUV4MPEG2 W%d H%d F25:1 Ip A1:1 C420jpeg\n", width, height);
    for (int i = 0; i < n_frames; i++) {
        fprintf(f, "FRAME\n");
        for (int j = 0; j < width * height * 3 / 2; j++)
            fputc((int)((unsigned)(i * 31 + j * j % 251) * (seed + 3) >> 1 & 0xff), f);
    }
    assert_int_equal(fclose(f), 0);
    return path;
}

enum { CLIPS = 12 };

/* Small ones, ones that are streamed, and an image. */
static const struct {
    const char *name;
    int frames, width, height, sampled;
} clips[CLIPS] = {
    { "a.y4m", 6, 64, 64, 4 }, { "b.y4m", 2, 64, 32, 2 },   { "c.y4m", 40, 64, 64, 33 },
    { "d.y4m", 5, 96, 64, 5 }, { "e.y4m", 3, 32, 64, 3 },   { "f.y4m", 90, 64, 32, 80 },
    { "g.y4m", 4, 64, 64, 4 }, { "h.ppm", 1, 96, 64, 1 },   { "i.y4m", 9, 160, 128, 9 },
    { "j.y4m", 7, 32, 32, 7 }, { "k.y4m", 60, 96, 64, 48 }, { "l.y4m", 2, 32, 96, 2 },
};
static const char *clip_paths[CLIPS];
static qv_decoder *decoder;

static int
make_files(void)
{
    if (tempdir_make())
        return -1;
    decoder = start_with(QV_DECODER, "QV_FAULT", "");
    for (int i = 0; i < CLIPS; i++) {
        const char *path = temp_path(clips[i].name);
        if (strstr(clips[i].name, ".ppm")) {
            FILE *f = fopen(path, "wb");
            fprintf(f, "P6\n%d %d\n255\n", clips[i].width, clips[i].height);
            for (int j = 0; j < clips[i].width * clips[i].height * 3; j++)
                fputc(j * j % 253, f);
            fclose(f);
        } else {
            clip_write(clips[i].name, clips[i].frames, clips[i].width, clips[i].height,
                       (unsigned)i);
        }
        clip_paths[i] = test_ends(strdup(path), free);
    }
    return 0;
}

static qv_clip_options
clip_options(int i)
{
    return (qv_clip_options){ .num_frames = clips[i].sampled,
                              .min_pixels = 1,
                              .max_pixels =
                                  (int64_t)clips[i].sampled * clips[i].width * clips[i].height,
                              .decode_seconds = 20 };
}

static void
add_clip(qv_job *job, const char *key, int i)
{
    const qv_clip_options o = clip_options(i);
    job_add(job, &(qv_job_source){ .key = key, .path = clip_paths[i], .clip = &o });
}

static void
add_bytes_of_clip(qv_job *job, const char *key, int i)
{
    const struct file f = read_file(clip_paths[i]);
    const qv_clip_options o = clip_options(i);
    job_add(job, &(qv_job_source){ .key = key,
                                   .kind = QV_SOURCE_BYTES,
                                   .bytes = f.data,
                                   .n_bytes = f.bytes,
                                   .clip = &o });
}

/* Returns what each of the clips gives, by a job of that clip alone. */
static struct collector *
clips_alone(const struct tiny *t)
{
    struct collector *c = collector_make(t);
    for (int i = 0; i < CLIPS; i++) {
        qv_job *job = job_with(t, c, .decoders = 1);
        add_clip(job, clips[i].name, i);
        job_end(&job);
        const struct got *g = find(c, clips[i].name);
        assert_int_equal(g->status, QV_OK);
        assert_int_equal(g->n, g->n_tokens);
    }
    return c;
}

static void
expect_same(const struct tiny *t, struct collector *got, struct collector *wanted, const char *key,
            const char *name)
{
    const struct got *g = find(got, key), *w = find(wanted, name);
    if (g->lasts != 1 || g->status)
        fail_msg("%s: %d last calls, %s %s", key, g->lasts, qv_status_name(g->status), g->error);
    assert_int_equal(g->n, w->n);
    assert_true(g->last_time_s == w->last_time_s);
    const size_t values = (size_t)(w->n_tokens * t->info.out_hidden * (1 + t->info.n_deepstack));
    if (!tiny_same(g->tokens, w->tokens, values, QV_F32))
        fail_msg("%s has other bits than alone", key);
}

TEST(clips_in_any_order_are_the_same_bits)
{
    EACH_TRIED (on) {
        struct tiny t = tiny_open(*on, QV_F32, 1);
        struct collector *alone = clips_alone(&t);
        for (int turn = 0; turn < 4; turn++) {
            struct collector *c = collector_make(&t);
            const qv_job_options o = { .chunk_rows = ROWS,
                                       .decoders = 1 + turn,
                                       .memory = turn % 2 ? 130000 : 0,
                                       .keep_frames = turn == 3,
                                       .clip.decoder = turn % 2 ? decoder : NULL };
            qv_job *job = job_open(&t, 1, o, c);
            for (int i = 0; i < CLIPS; i++) {
                const int which = turn % 2 ? CLIPS - 1 - i : (i * 7 + turn) % CLIPS;
                (turn == 1 ? add_bytes_of_clip : add_clip)(job, clips[which].name, which);
            }
            const qv_job_progress p = job_end(&job);
            assert_int_equal(p.failed, 0);
            assert_true(p.most_frame_bytes > 0);
            /* one piece may exceed the limit: a clip whose frame pairs are larger than a chunk of
             * 64 patches goes to the device's own chunk */
            const bool whole = strcmp(*on, "ref") != 0;
            if (turn % 2)
                assert_true(p.most_frame_bytes <= (whole ? 9 * 160 * 128 * 3 : 130000));
            for (int i = 0; i < CLIPS; i++)
                expect_same(&t, c, alone, clips[i].name, clips[i].name);
        }
    }
}

/* A clip that fits into one chunk still comes in parts, as they are decoded. If there is memory for
 * none of them, each part is computed before the next one is read. */
TEST(a_clip_is_read_in_parts_of_a_chunk)
{
    enum { K = 10 };
    struct collector *alone = clips_alone(&usual);
    qv_job *job = job_open(&usual, 1, (qv_job_options){ .chunk_rows = 24 * 24, .memory = 1 }, kept);
    add_clip(job, clips[K].name, K);
    const qv_job_progress p = job_end(&job);
    const int64_t whole = (int64_t)clips[K].sampled * clips[K].width * clips[K].height * 3;
    assert_in_range(p.most_frame_bytes, 1, whole / 8);
    expect_same(&usual, kept, alone, clips[K].name, clips[K].name);
}

static qv_status
keep_device_s(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    *(double *)user = r->wait_device_s;
    return r->status;
}

/* A chunk that has several pieces of a source is waited for once. */
TEST(a_chunk_is_waited_for_once)
{
    enum { K = 10 };
    double device_s = 0;
    qv_job *job = NULL;
    const qv_job_options o = { .chunk_rows = 24 * 24,
                               .sink = { .end = keep_device_s, .user = &device_s },
                               .clip.decoder = decoder };
    assert_ok(qv_job_open(&usual.model, 1, &o, &job, ERR));
    add_clip(job, clips[K].name, K);
    const qv_job_progress p = job_end(&job);
    assert_true(device_s > 0 && device_s <= p.device_s * 1.001);
}

/* Calls of qv_clip_read: how many there were, and which one waits (0: none). */
static atomic_int n_reads, held_read;

WRAPPED(qv_status, qv_clip_read,
        (qv_clip * clip, uint8_t *dst, int64_t n_max, int64_t *n, double *times, qv_error *err))
{
    const int read = atomic_fetch_add(&n_reads, 1) + 1;
    while (atomic_load(&held_read) == read)
        usleep(100);
    return __real_qv_clip_read(clip, dst, n_max, n, times, err);
}

/* A clip that is dropped while it is read is read no further. */
TEST(a_clip_is_dropped_while_it_is_read)
{
    enum { K = 5 };
    const qv_clip_options o = clip_options(K);
    const int last = clips[K].sampled;
    atomic_store(&n_reads, 0);
    atomic_store(&held_read, last - 1);
    qv_job *job = job_with(&usual, kept, .decoders = 1);
    job_add(job, &(qv_job_source){
                     .key = "k", .path = clip_paths[K], .clip = &o, .ticket = UINT64_MAX });
    qv_job_progress p;
    do
        qv_job_get_progress(job, &p);
    while (!p.chunks || atomic_load(&n_reads) < last - 1);
    assert_int_equal(qv_job_drop(job, NULL, UINT64_MAX), 1);
    atomic_store(&held_read, 0);
    assert_int_equal(job_end(&job).failed, 1);
    const struct got *g = find(kept, "k");
    assert_true(g->cancelled && g->lasts == 1);
    assert_int_equal(atomic_load(&n_reads), last - 1);
    assert_true(!g->n_tokens || g->n < g->n_tokens); /* 0: the drop came before the first rows */
}

TEST(a_source_that_is_wrong_costs_itself)
{
    struct collector *alone = clips_alone(&usual);
    assert_int_equal(mkfifo(temp_path("pipe"), 0600), 0);
    const struct {
        const char *key, *path, *words;
        qv_status status;
    } wrong[] = { { "missing", temp_path("missing.mp4"), "cannot be opened", QV_EIO },
                  { "folder", tempdir, "not a regular file", QV_EIO },
                  { "pipe", temp_path("pipe"), "not a regular file", QV_EIO },
                  { "text", temp_text("text.mp4", "this is no clip"), "not a clip", QV_EFORMAT } };
    enum { WRONG = sizeof wrong / sizeof *wrong };
    qv_job *job = job_with(&usual, kept, .decoders = 3, .clip.decoder = decoder);
    for (int i = 0; i < CLIPS; i++) {
        add_clip(job, clips[i].name, i);
        if (i < WRONG)
            job_add(job, &(qv_job_source){ .key = wrong[i].key, .path = wrong[i].path });
    }
    /* options that do not go with one */
    qv_clip_options odd = clip_options(0);
    odd.fps = 2;
    job_add(job, &(qv_job_source){ .key = "odd", .path = clip_paths[0], .clip = &odd });
    const qv_job_progress p = job_end(&job);
    assert_int_equal(p.failed, WRONG + 1);
    for (int i = 0; i < CLIPS; i++)
        expect_same(&usual, kept, alone, clips[i].name, clips[i].name);
    for (int i = 0; i < WRONG; i++) {
        const struct got *g = find(kept, wrong[i].key);
        assert_int_equal(g->lasts, 1);
        assert_int_equal(g->begins + g->calls, 0);
        assert_int_equal(g->status, wrong[i].status);
        assert_non_null(strstr(g->error, wrong[i].words));
        assert_non_null(strstr(g->error, wrong[i].path));
    }
    assert_int_equal(find(kept, "odd")->status, QV_EINVAL);
}

/* ---- what is ahead --------------------------------------------------------------------------- */

enum { HELD = 60 };

/* Holds results until they are taken in the order of their sources. */
struct holder {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    qv_job *job;
    int64_t bytes[HELD]; /* of each that came; 0 before */
    int64_t held, most, largest;
};

static qv_status
hold(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    struct holder *h = user;
    pthread_mutex_lock(&h->lock);
    *(int64_t *)r->user = r->ahead_bytes;
    h->held += r->ahead_bytes;
    h->most = h->held > h->most ? h->held : h->most;
    h->largest = r->ahead_bytes > h->largest ? r->ahead_bytes : h->largest;
    pthread_cond_signal(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return QV_OK;
}

static void
take_next(struct holder *h, int i)
{
    pthread_mutex_lock(&h->lock);
    while (!h->bytes[i])
        pthread_cond_wait(&h->changed, &h->lock);
    h->held -= h->bytes[i];
    pthread_mutex_unlock(&h->lock);
    qv_job_give_back(h->job, NULL, h->bytes[i]);
}

static void *
take_all(void *user)
{
    for (int i = 0; i < HELD; i++)
        take_next(user, i);
    return NULL;
}

/* A source of every kind: frames, a clip's file, one that is missing, one that failed before. */
static void
add_held(struct holder *h, int i, const uint8_t *frames)
{
    const qv_clip_options o = clip_options(i % CLIPS);
    qv_job_source s = {
        .key = numbered(i), .path = clip_paths[i % CLIPS], .clip = &o, .user = &h->bytes[i]
    };
    if (i % 4 == 1) {
        s.kind = QV_SOURCE_FRAMES;
        s.item = (qv_item){ .data = frames, .grid_thw = { 1 + i % 7, 4, 4 } };
    } else if (i % 4 == 2) {
        s.path = "missing.mp4";
    } else if (i % 8 == 3) {
        s.status = QV_EINVAL;
    }
    job_add(h->job, &s);
}

static qv_job_options
held_options(struct holder *h, int64_t ahead, int decoders)
{
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    return (qv_job_options){ .sink = { .end = hold, .user = h },
                             .chunk_rows = ROWS,
                             .decoders = decoders,
                             .sinks = 2,
                             .ahead = ahead,
                             .clip.decoder = decoder };
}

/* However small the bound and however large the first source, a caller that takes results in order
 * gets the next one; at most the bound and the results in progress are held. */
TEST(results_are_taken_in_order_below_a_bound)
{
    uint8_t *frames = tiny_frames(&usual, 14, 4, 4, 1);
    for (int turn = 0; turn < 4; turn++) {
        struct holder h = { .held = 0 };
        const int decoders = 1 + turn;
        const int64_t ahead = turn ? turn * 20000 : 1;
        const qv_job_options o = held_options(&h, ahead, decoders);
        pthread_t taker;
        assert_ok(qv_job_open(&usual.model, 1, &o, &h.job, ERR));
        assert_int_equal(pthread_create(&taker, NULL, take_all, &h), 0);
        for (int i = 0; i < HELD; i++)
            add_held(&h, i, frames);
        pthread_join(taker, NULL);
        assert_int_equal(h.held, 0);
        assert_true(h.largest > 2048);
        assert_in_range(h.most, 1, ahead + decoders * h.largest);
        assert_int_equal(job_end(&h.job).done, HELD);
    }
}

/* Waits until the given number of sources is done, and checks that no other source is being read a
 * moment later. */
static void
expect_done(qv_job *job, int64_t n)
{
    qv_job_progress p = { 0 }, later;
    while (p.done < n)
        qv_job_get_progress(job, &p);
    usleep(20000);
    qv_job_get_progress(job, &p);
    usleep(20000);
    qv_job_get_progress(job, &later);
    assert_int_equal(later.done, n);
    assert_true(later.decode_s == p.decode_s && later.device_s == p.device_s);
}

/* Opens a job and adds three files, before the first of them is open. */
static void
open_with_three(const struct tiny *t, qv_job_options o, struct holder *h)
{
    const qv_clip_options whole = clip_options(10);
    static const char *const keys[] = { "0", "1", "2" };
    qv_status status = QV_EFULL;
    o.refuse_when_full = true;
    while (status) { /* the first was open already */
        qv_job_close(&h->job);
        assert_int_equal(qv_job_open(&t->model, 1, &o, &h->job, NULL), QV_OK);
        status = QV_OK;
        for (int i = 0; i < 3 && !status; i++)
            status = qv_job_add(h->job,
                                &(qv_job_source){ .key = keys[i],
                                                  .path = clip_paths[10],
                                                  .clip = &whole,
                                                  .user = &h->bytes[i] },
                                NULL);
    }
}

TEST(nothing_is_taken_up_until_results_are_given_back)
{
    uint8_t *frames = tiny_frames(&usual, 14, 4, 4, 1);
    struct holder h = { .held = 0 };
    qv_job_options o = held_options(&h, 1, 1);
    o.queue = 4;
    o.refuse_when_full = true;
    assert_ok(qv_job_open(&usual.model, 1, &o, &h.job, ERR));
    add_held(&h, 0, frames);
    expect_done(h.job, 1);
    const qv_job_source next = { .key = "next", .path = clip_paths[0], .user = &h.bytes[1] };
    expect_error(QV_EFULL, "next: |not given back", qv_job_add(h.job, &next, ERR));
    qv_job_give_back(h.job, NULL, INT64_MIN); /* a negative amount is ignored */
    expect_error(QV_EFULL, "not given back", qv_job_add(h.job, &next, ERR));
    take_next(&h, 0);
    add_held(&h, 4, frames);
    expect_done(h.job, 2);
    take_next(&h, 4);
    job_end(&h.job);
    /* The size of a file's result is known once it is open. Then the first of three added files is
     * finished, and its last chunk does not wait for the others' frames. */
    const double began_s = qv_seconds();
    h = (struct holder){ .held = 0 };
    o = held_options(&h, 7000, 1);
    open_with_three(&usual, o, &h);
    for (int i = 0; i < 3; i++) {
        expect_done(h.job, i + 1);
        assert_true(h.bytes[i] > 7000);
        take_next(&h, i);
    }
    job_end(&h.job);
    assert_true(qv_seconds() - began_s < 10);
    /* without a bound nothing counts */
    h = (struct holder){ .held = 0 };
    o = held_options(&h, 0, 1);
    assert_ok(qv_job_open(&usual.model, 1, &o, &h.job, ERR));
    for (int i = 0; i < 8; i++)
        add_held(&h, i, frames);
    job_end(&h.job);
    assert_int_equal(h.held, 0);
}

/* A client that returns nothing blocks only itself, and a cancelled client fails the call of
 * qv_job_add that waits for it. */
struct adding {
    qv_job *job;
    qv_job_source source;
    qv_status status;
};

static void *
add_and_wait(void *user)
{
    struct adding *a = user;
    a->status = qv_job_add(a->job, &a->source, NULL);
    return NULL;
}

TEST(clients_have_bounds_of_their_own)
{
    uint8_t *frames = tiny_frames(&usual, 14, 4, 4, 1);
    const qv_clip_options whole = clip_options(10);
    struct holder h = { .held = 0 };
    const qv_job_options o = held_options(&h, 0, 1);
    qv_job_client *idle = NULL, *busy = NULL;
    qv_job_source clip = { .key = "clip", .path = clip_paths[10], .clip = &whole };
    pthread_t adder;
    assert_ok(qv_job_open(&usual.model, 1, &o, &h.job, ERR));
    expect_error(QV_EINVAL, "queue is -1", qv_job_client_open(h.job, -1, false, 0, &idle, ERR));
    assert_ok(qv_job_client_open(h.job, 0, false, 7000, &idle, ERR));
    assert_ok(qv_job_client_open(h.job, 2, true, 0, &busy, ERR));
    for (int i = 0; i < 4; i++) { /* while the only reader has the first one, the others wait */
        clip.client = i ? idle : NULL;
        clip.user = &h.bytes[i];
        job_add(h.job, &clip);
    }
    struct adding waits = { .job = h.job, .source = clip };
    assert_int_equal(pthread_create(&adder, NULL, add_and_wait, &waits), 0);
    expect_done(h.job, 2);
    assert_true(h.bytes[1] > 7000); /* nothing further of this client is taken up */
    qv_job_source s = small_source("busy", frames);
    s.client = busy;
    for (int i = 4; i < 12; i++) {
        s.user = &h.bytes[i];
        while (qv_job_add(h.job, &s, NULL) == QV_EFULL)
            usleep(100);
    }
    expect_done(h.job, 10);
    qv_job_client_cancel(idle);
    pthread_join(adder, NULL);
    assert_int_equal(waits.status, QV_ESTATE);
    expect_error(QV_ESTATE, "the job has ended", qv_job_add(h.job, &waits.source, ERR));
    qv_job_client_close(&idle);
    qv_job_client_close(&busy);
    clip.client = NULL;
    job_add(h.job, &clip);
    const qv_job_progress p = job_end(&h.job);
    assert_int_equal(p.done, 13);
    assert_int_equal(p.failed, 2); /* those that waited were dropped */
}

/* A closed client's sources are dropped, and its lent memory is not read after their ends. */
TEST(a_client_is_closed_while_its_sources_are_under_way)
{
    uint8_t *frames = tiny_frames(&usual, 14, 4, 4, 1);
    struct holder h = { .held = 0 };
    const qv_job_options o = held_options(&h, 0, 2);
    assert_ok(qv_job_open(&usual.model, 1, &o, &h.job, ERR));
    for (int turn = 0; turn < 20; turn++) {
        qv_job_client *client = NULL;
        assert_ok(qv_job_client_open(h.job, 0, false, 1 << 20, &client, ERR));
        for (int i = 0; i < 20; i++) {
            qv_job_source s = small_source("k", frames);
            s.client = client;
            s.user = &h.bytes[i];
            job_add(h.job, &s);
        }
        qv_job_client_close(&client);
        assert_null(client);
    }
    const qv_job_progress p = job_end(&h.job);
    assert_int_equal(p.done, 400);
    assert_true(p.failed > 0);
}

/* ---- going on -------------------------------------------------------------------------------- */

static qv_status
take_slowly(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    usleep(300000);
    return QV_OK;
}

static bool
ask_thrice(void *user, qv_job *job)
{
    qv_job_progress p;
    qv_job_get_progress(job, &p);
    return ++*(int *)user < 3;
}

/* A job that waits, for room or for its end, asks whether it goes on. */
TEST(a_job_that_waits_asks_whether_it_goes_on)
{
    uint8_t *frames = tiny_frames(&usual, 2, 4, 4, 1);
    for (int adding = 0; adding < 2; adding++) {
        int asked = 0;
        qv_job *job = NULL;
        const qv_job_options o = { .sink = { .end = take_slowly, .user = &asked },
                                   .go_on = ask_thrice,
                                   .chunk_rows = ROWS,
                                   .ahead = adding };
        const qv_job_source s = small_source("k", frames);
        assert_ok(qv_job_open(&usual.model, 1, &o, &job, ERR));
        job_add(job, &s);
        if (adding)
            expect_error(QV_ESTATE, "the job has ended", qv_job_add(job, &s, ERR));
        assert_ok(qv_job_end(job, ERR));
        assert_int_equal(asked, 3);
        qv_job_close(&job);
    }
}

/* ---- many, and decoders that are killed ------------------------------------------------------ */

/* Processes that the decoder has made and not ended; kill_nth of them is killed, -1: none. */
static int
decoder_children(int kill_nth)
{
    int n = 0;
    struct child c = { 0 };
    while (next_child(decoder->child.pid, &c))
        if (c.state != 'Z' && n++ == kill_nth)
            kill(c.pid, SIGKILL);
    return n;
}

struct killer {
    atomic_bool stop;
    int killed;
};

static void *
kill_some(void *user)
{
    struct killer *k = user;
    for (unsigned seed = 1; !atomic_load(&k->stop); usleep(20000))
        k->killed += decoder_children((int)(test_random(&seed) >> 20) % 4) > 0;
    return NULL;
}

/* Clips whose decoder is killed report that; the others are right. */
TEST(decoders_are_killed_at_random)
{
    enum { MANY = 120 };
    struct collector *alone = clips_alone(&usual);
    static struct killer k; /* goes on if this fails */
    pthread_t thread;
    qv_job *job = job_with(&usual, kept, .decoders = 4, .clip.decoder = decoder);
    assert_int_equal(pthread_create(&thread, NULL, kill_some, &k), 0);
    for (int i = 0; i < MANY; i++)
        add_clip(job, numbered(i), i % CLIPS);
    const qv_job_progress p = job_end(&job);
    atomic_store(&k.stop, true);
    pthread_join(thread, NULL);
    int failed = 0;
    for (int i = 0; i < MANY; i++) {
        const struct got *g = find(kept, numbered(i));
        failed += g->status != QV_OK;
        if (g->status)
            assert_non_null(strstr(g->error, "signal 9"));
        else
            expect_same(&usual, kept, alone, g->key, clips[i % CLIPS].name);
    }
    assert_int_equal(p.failed, failed);
    print_message("%d killed, %d of %d clips failed\n", k.killed, failed, MANY);
    assert_true(failed > 0 && failed < MANY);
}

static int64_t
resident_bytes(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

static qv_status
count(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    *(int *)user += !r->status;
    return QV_OK;
}

/* QV_SOAK=20000 for that many clips. Memory, descriptors and processes stay as they were. */
TEST(a_soak_leaves_nothing_behind)
{
    const char *asked = getenv("QV_SOAK");
    const int many = asked ? atoi(asked) : 150, warm = many / 3;
    int done = 0;
    const qv_job_options o = { .sink = { .end = count, .user = &done },
                               .decoders = 3,
                               .chunk_rows = ROWS,
                               .clip.decoder = decoder };
    qv_job *job = NULL;
    const int files = count_descriptors(getpid()), processes = decoder_children(-1);
    assert_ok(qv_job_open(&usual.model, 1, &o, &job, ERR));
    int64_t before = 0;
    for (int i = 0; i < many; i++) {
        add_clip(job, numbered(i), i % 2 ? 1 : 9);
        if (i == warm)
            before = resident_bytes();
    }
    assert_ok(qv_job_end(job, ERR));
    const int64_t grew = resident_bytes() - before;
    qv_job_close(&job);
    assert_int_equal(done, many);
    assert_int_equal(count_descriptors(getpid()), files);
    for (int waited = 0; decoder_children(-1) > processes + 1; waited++) {
        assert_true(waited < 5000); /* those that were dropped are waited for by and by */
        usleep(1000);
    }
    print_message("%d clips: %.1f MiB more than after %d\n", many, (double)grew / (1 << 20), warm);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which keep what is freed */
    assert_true(grew < (int64_t)16 << 20);
#endif
}

/* The capacity that a model reports before a job exists is the capacity in which the job packs. */
TEST(packs_are_as_large_as_a_model_says)
{
    EACH_TRIED (on) {
        struct tiny t = tiny_open(*on, QV_F32, 1);
        for (int64_t rows = 0; rows <= 4 * ROWS; rows += 37) {
            struct collector *c = collector_make(&t);
            qv_job *job = job_open(&t, 1, (qv_job_options){ .chunk_rows = rows }, c);
            assert_int_equal(job_end(&job).pack_rows, qv_model_packing(t.model, rows).rows);
        }
    }
}

static int
set_up(void)
{
    usual = tiny_open("ref", QV_F32, 1);
    kept = collector_make(&usual);
    return 0;
}

TEST_EACH(set_up, NULL);
TEST_GROUP(make_files, tempdir_remove);
