/* SPDX-License-Identifier: MIT */
/*
 * Encodes lists of many sizes as if on several devices, with qv_encode and in jobs, and writes the
 * sequence of their chunks (chunk_trace.c). A device here is ref with another's capabilities, and
 * computes nothing. Before a job's device thread chooses a chunk, all other threads have come to
 * rest, so the sequence does not depend on time.
 */
#include "test.h"

#include <dirent.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "chunk_trace.h"
#include "qwenvit_clips.h"
#include "tiny.h"

enum { MOST = 300, FEW = 64 };

#define ALL .alignment = 64, .threads = 1, .dtype = QV_F32
#define GPU                                                                                        \
    ALL, .chunk_rows = 6144, .pack_rows = 12288, .bucket_rows = 128, .least_rows = 512, .chunks = 2
#define CPU                                                                                        \
    ALL, .chunk_rows = 640, .bucket_rows = 16, .least_rows = 16, .chunks = 1,                      \
         .free_segments = true, .quick_plans = true
static const struct device {
    const char *name, *family;
    qv_dtype dtype;
    struct qv_caps caps;
} devices[] = {
    { "CPU", "qwen3_vl", QV_BF16, { CPU } },
    { "CPU, windows", "qwen2_5_vl", QV_BF16, { CPU, .same_bf16 = { .gemm_rows = QV_NOT_SEEN } } },
    { "GPU", "qwen3_vl", QV_BF16, { GPU } },
    { "GPU, dense unlike ragged", "qwen3_vl", QV_BF16, { GPU, .same_bf16 = { .head_dims = { 64, 64 } } } },
    { "GPU, f32", "qwen3_vl", QV_F32, { GPU, .same_f32 = { .gemm_rows = QV_NOT_SEEN } } },
    { "GPU, windows", "qwen2_5_vl", QV_BF16, { GPU } },
    { "GPU of Apple's",
      "qwen3_vl",
      QV_BF16,
      { ALL, .chunk_rows = 1536, .bucket_rows = 32, .least_rows = 32, .chunks = 2,
        .same_bf16 = { .gemm_rows = 9 } } },
};

/* ---- items ----------------------------------------------------------------------------------- */

/* Sizes are those for a chunk of 12,288 rows; elsewhere they are smaller. */
static const struct list {
    const char *name;
    struct {
        int n, t, h, w; /* t 0: images; n items, whose sizes grow by `step` in turn */
        int step;
    } runs[4];
} lists[] = {
    { "one small clip", { { 1, 2, 4, 6, 0 } } },
    { "one image", { { 1, 0, 40, 30, 0 } } },
    { "one long clip", { { 1, 70, 20, 38, 0 } } },
    { "one image larger than a chunk", { { 1, 0, 120, 160, 0 } } },
    { "two", { { 1, 3, 20, 38, 0 }, { 1, 0, 60, 40, 0 } } },
    { "64 equal", { { 64, 4, 20, 38, 0 } } },
    { "64 sizes", { { 32, 0, 10, 14, 2 }, { 32, 3, 30, 12, 2 } } },
    { "straddling", { { 3, 37, 20, 38, 0 }, { 2, 25, 26, 46, 0 }, { 1, 90, 12, 20, 0 } } },
    { "repeats",
      { { 21, 5, 32, 32, 0 }, { 12, 0, 24, 44, 0 }, { 30, 1, 64, 48, 0 }, { 9, 0, 8, 8, 6 } } },
    { "much left", { { 12, 1, 90, 80, 0 }, { 6, 0, 60, 66, 0 }, { 8, 3, 90, 80, 0 } } },
    { "many small", { { MOST, 0, 4, 4, 0 } } },
    { "large among small",
      { { 20, 0, 16, 16, 4 },
        { 2, 0, 120, 160, 0 },
        { 2, 6, 110, 130, 0 },
        { 20, 2, 20, 20, 2 } } },
};

static int64_t
side(int cells, int64_t rows)
{
    const int64_t scaled = (int64_t)(cells * sqrt((double)rows / 12288) + 0.5);
    return scaled < 2 ? 2 : scaled / 2 * 2;
}

static size_t
make_items(const struct list *list, int64_t rows, qv_item items[MOST])
{
    size_t n = 0;
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < list->runs[r].n; i++, n++) {
            const int turn = i * 7 % 16 * list->runs[r].step, t = list->runs[r].t;
            items[n] = (qv_item){ .data = chunk_trace_items + (n << CHUNK_TRACE_BITS),
                                  .grid_thw = { t ? t : 1, side(list->runs[r].h + turn, rows),
                                                side(list->runs[r].w + turn / 2, rows) },
                                  .is_image = !t };
        }
    return n;
}

/* ---- a device that computes nothing ---------------------------------------------------------- */

static qv_status
run_nothing(struct qv_device *dev, const struct qv_call *calls, size_t n, qv_error *err)
{
    (void)dev, (void)calls, (void)n, (void)err;
    return QV_OK;
}

static qv_status
upload_nothing(struct qv_device *dev, struct qv_buffer dst, const void *src, size_t bytes,
               qv_error *err)
{
    (void)dev, (void)dst, (void)src, (void)bytes, (void)err;
    return QV_OK;
}

static struct tiny
open_device(const struct device *d)
{
    static struct qv_backend idle;
    char dir[300];
    snprintf(dir, sizeof dir, "%s/%s", QV_GOLDEN, d->family);
    struct tiny t = tiny_open_family(dir, "ref", d->dtype, 1);
    idle = *t.ctx->backend;
    idle.run = run_nothing;
    idle.upload = upload_nothing;
    t.ctx->backend = &idle;
    t.ctx->caps = d->caps;
    return t;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static atomic_bool holds, held; /* the device must wait at its next push; it waits there */
static atomic_int
    grace_us; /* after so long without a piece a job that has not ended expects no more */
static sem_t gate;

/* Waits until all other threads wait: three times in a row, as a thread may wait for a lock for a
 * moment. */
static void
wait_for_rest(void)
{
    for (int at_rest = 0; at_rest < 3; usleep(100)) {
        DIR *threads = opendir("/proc/self/task");
        assert_non_null(threads);
        at_rest++;
        for (struct dirent *e; (e = readdir(threads));) {
            char name[300], text[200] = "";
            snprintf(name, sizeof name, "/proc/self/task/%s/stat", e->d_name);
            FILE *f =
                atol(e->d_name) && atol(e->d_name) != syscall(SYS_gettid) ? fopen(name, "r") : NULL;
            if (f && fgets(text, sizeof text, f) && strrchr(text, ')')[2] != 'S')
                at_rest = 0;
            if (f)
                fclose(f);
        }
        closedir(threads);
    }
}

static void
wait_in_device(void)
{
    if (atomic_load(&holds)) {
        atomic_store(&held, true);
        sem_wait(&gate);
        atomic_store(&holds, false);
    }
    wait_for_rest();
    usleep((useconds_t)atomic_load(&grace_us));
}

static qv_status
tell_failure(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    (void)user, (void)entry, (void)err;
    if (r->status)
        chunk_trace("%s: %s\n", r->key, r->error);
    return QV_OK;
}

/* What a job is asked for besides its options. */
enum { PATCHES = 1, BURSTS = 2 };

/* Adds items [first, end), while the device holds back a chunk with the first of them. */
static void
add_burst(qv_job *job, const qv_item *items, size_t first, size_t end, int how)
{
    const qv_source_kind kinds[] = { QV_SOURCE_FRAMES, QV_SOURCE_PATCHES, QV_SOURCE_PATCHES_BF16 };
    atomic_store(&held, false);
    atomic_store(&holds, true);
    for (size_t i = first; i < end; i++) {
        const qv_source_kind kind = kinds[how & PATCHES ? i % 3 : 0];
        assert_ok(qv_job_add(job, &(qv_job_source){ .key = "item", .kind = kind, .item = items[i] },
                             ERR));
        while (!atomic_load(&held))
            usleep(100);
    }
}

/* With BURSTS, the first half is done before the second is added; nobody has said by then whether
 * more comes. */
static void
encode_in_job(const struct tiny *t, const qv_item *items, size_t n, int how,
              const qv_job_options *options)
{
    qv_job *job = NULL;
    qv_job_options o = *options;
    o.sink.end = tell_failure;
    o.decoders = 1;
    assert_ok(qv_job_open(&t->model, 1, &o, &job, ERR));
    const size_t half = how & BURSTS && n > 1 ? n / 2 : 0;
    qv_job_progress p = { 0 };
    atomic_store(&grace_us, half ? 3000 : 0);
    if (half)
        add_burst(job, items, 0, half, how);
    if (half)
        sem_post(&gate);
    for (; p.done < (int64_t)half; usleep(1000))
        qv_job_get_progress(job, &p);
    add_burst(job, items, half, n, how);
    sem_post(&gate); /* the device goes on once this thread waits in qv_job_end */
    assert_ok(qv_job_end(job, ERR));
    qv_job_close(&job);
}

/* ---- all ------------------------------------------------------------------------------------- */

static void
encode(const struct tiny *t, const qv_item *items, size_t n, const qv_plan_options *options)
{
    qv_error err;
    size_t bytes;
    qv_tokens out = tiny_tokens(t, items, n, QV_F32, &bytes);
    chunk_trace_wait = NULL;
    if (qv_encode(t->model, QV_INPUT_FRAMES, items, n, options, &out, &err))
        chunk_trace("%s\n", err.text);
    test_end(out.tokens);
    chunk_trace_wait = wait_in_device;
}

static void
trace_device(const struct device *d)
{
    static qv_item items[MOST];
    const int64_t rows = d->caps.pack_rows ? d->caps.pack_rows : d->caps.chunk_rows;
    const qv_plan_options asked[] = {
        { .capacity = { 0 } },
        { .capacity = { .patches = rows / 4 } },
        { .capacity = { .patches = rows / 2, .segments = 5 } },
        { .capacity = { .patches = rows, .segment_rows = side(20, rows) * side(38, rows) } }
    };
    const struct {
        int how;
        qv_job_options options;
    } jobs[] = { { 0, { .alone = false } },
                 { 0, { .alone = true } },
                 { 0, { .chunk_rows = rows / 4, .output = QV_BF16 } },
                 { 0, { .alone = true, .chunk_rows = rows / 3 } },
                 { PATCHES, { .output = QV_BF16 } },
                 { BURSTS, { .alone = false } } };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const size_t n = make_items(&lists[i], rows, items);
        struct tiny t = open_device(d);
        for (size_t j = 0; j < sizeof asked / sizeof *asked; j++) {
            chunk_trace("== %s: %s: encode %zu\n", d->name, lists[i].name, j);
            encode(&t, items, n, &asked[j]);
        }
        for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
            chunk_trace("== %s: %s: job %zu\n", d->name, lists[i].name, j);
            encode_in_job(&t, items, jobs[j].options.alone && n > FEW ? FEW : n, jobs[j].how,
                          &jobs[j].options);
        }
        tiny_close(&t);
    }
}

TEST_MAIN(argc, argv)
{
    chunk_trace_items = mmap(NULL, (size_t)MOST << CHUNK_TRACE_BITS, PROT_READ,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (chunk_trace_items == MAP_FAILED || sem_init(&gate, 0, 0))
        return 1;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (argc < 2 || !strcmp(argv[1], devices[i].name))
            trace_device(&devices[i]);
    return 0;
}
