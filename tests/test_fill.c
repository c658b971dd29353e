/* SPDX-License-Identifier: MIT */
/*
 * Tests filling a cache: which clips of a list are wanted, what failed before, whose fault a
 * failure is, what happens when the run is stopped, and the rules of a list's row.
 */
#include "test.h"

#include <math.h>
#include <stdatomic.h>

#include "job/more.h"
#include "cache_tools.h"
#include "error.h"
#include "tiny.h"
#include "wrap.h"

/* ---- whose fault ----------------------------------------------------------------------------- */

TEST(only_the_device_and_memory_end_a_run)
{
    static const qv_status clips[] = { QV_OK, QV_EINVAL, QV_EIO, QV_EFORMAT, QV_EUNSUPPORTED };
    static const qv_status ours[] = { QV_ENOMEM, QV_ENODEVICE, QV_EBACKEND, QV_ESTATE };
    EACH (c, clips)
        assert_false(qv_ends_all(*c));
    EACH (c, ours)
        assert_true(qv_ends_all(*c));
}

/* ---- what is wanted -------------------------------------------------------------------------- */

enum { IMAGES = 3 };

struct filler {
    qv_cache_fill_options o;
    qv_cache_fill_counts counts;
    int n_wanted;
    atomic_int n_told;
    int64_t enough;    /* The run is stopped after this many clips; 0: it is not stopped. */
    char warning[600]; /* of the whole run */
};

static const char *
image(int i)
{
    char name[32], data[64 + 64 * 64 * 3];
    snprintf(name, sizeof name, "%d.ppm", i);
    const int n = snprintf(data, 64, "P6\n64 64\n255\n");
    memset(data + n, 'a' + i, 64 * 64 * 3);
    return temp_file(name, data, (size_t)n + 64 * 64 * 3);
}

static int
make_images(void)
{
    if (tempdir_make())
        return -1;
    for (int i = 0; i < IMAGES; i++)
        image(i);
    return 0;
}

/* Called by the job's threads. cmocka cannot end a test there, so this only counts. */
static void
count_told(void *user, const char *key, qv_status status, const char *words)
{
    struct filler *f = user;
    if (!key) {
        snprintf(f->warning, sizeof f->warning, "%s: %s", qv_status_name(status), words);
        return;
    }
    if (!strcmp(key, "missing") && status == QV_EIO && strstr(words, "missing.mp4"))
        atomic_fetch_add(&f->n_told, 1);
    else
        fprintf(stderr, "%s: %s\n", key, words);
}

static bool
go_on(void *user, qv_job *job)
{
    const struct filler *f = user;
    qv_job_progress p;
    qv_job_get_progress(job, &p);
    return !f->enough || p.done < f->enough;
}

/* Fills a cache with the images 0 to n - 1 and a file that does not exist. */
static qv_status
fill_with(struct filler *f, const char *model_dir, int n, qv_error *err)
{
    char keys[64][16], paths[64][64];
    const qv_clip_options own = { .max_pixels = 65536 };
    struct tiny t = tiny_open_model(model_dir, "ref", NULL, 0);
    qv_cache_fill *fill = NULL;
    f->o.told = count_told;
    f->o.go_on = go_on;
    f->o.user = f;
    f->n_wanted = 0;
    assert_ok(qv_cache_fill_open(temp_path("cache"), &f->o, &fill, ERR));
    for (int i = 0; i <= n; i++) {
        bool wanted = false;
        snprintf(keys[i], sizeof keys[i], i < n ? "%d" : "missing", i);
        snprintf(paths[i], sizeof paths[i], "%s", temp_path(i < n ? keys[i] : "missing.mp4"));
        if (i < n)
            strcat(paths[i], ".ppm");
        assert_ok(qv_cache_fill_add(fill, keys[i], paths[i], i == 1 ? &own : NULL, &wanted, ERR));
        f->n_wanted += wanted;
    }
    const qv_status s = qv_cache_fill_end(fill, &t.model, 1, err);
    if (!s)
        assert_int_equal(qv_cache_fill_end(fill, &t.model, 1, err), QV_EINVAL);
    qv_cache_fill_get_counts(fill, &f->counts);
    qv_cache_fill_close(&fill);
    return s;
}

static void
expect_fill(struct filler *f, int wanted, int64_t done, int64_t failed, int64_t there,
            int64_t failed_before)
{
    atomic_store(&f->n_told, 0);
    assert_ok(fill_with(f, QV_GOLDEN "/qwen3_vl", IMAGES, ERR));
    assert_int_equal(f->n_wanted, wanted);
    assert_int_equal(f->counts.done, done);
    assert_int_equal(f->counts.failed, failed);
    assert_int_equal(f->n_told, failed);
    assert_int_equal(f->counts.there, there);
    assert_int_equal(f->counts.failed_before, failed_before);
    assert_int_equal(f->counts.frames, done); /* images */
    assert_true((f->counts.tokens > 0) == (done > 0));
}

TEST(what_is_there_is_left_alone)
{
    struct filler f = { .enough = 0 };
    expect_fill(&f, 4, 3, 1, 0, 0);
    expect_fill(&f, 0, 0, 0, 3, 1);
    f.o.retry_failed = true;
    expect_fill(&f, 1, 0, 1, 3, 0);
    f.o.retry_failed = false;
    const char *changed = image(0); /* The same bytes, written at another time. */
    const struct timespec times[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
    assert_int_equal(utimensat(AT_FDCWD, changed, times, 0), 0);
    expect_fill(&f, 1, 1, 0, 2, 1);
}

TEST(a_run_that_is_stopped_seals_what_is_done)
{
    enum { MANY = 60 };
    struct filler f = { .o.chunk_rows = 256, .enough = 1 };
    for (int i = IMAGES; i < MANY; i++)
        image(i);
    assert_ok(fill_with(&f, QV_GOLDEN "/qwen3_vl", MANY, ERR));
    const int64_t done = f.counts.done, failed = f.counts.failed;
    assert_true(done + failed >= 1 && done < MANY);

    const qv_cache_info info = cache_info(open_cache(temp_path("cache")));
    assert_int_equal(info.n_ok, done);
    assert_int_equal(info.n_failed, failed);
    assert_int_equal(info.n_damaged, 0);

    f.enough = 0;
    assert_ok(fill_with(&f, QV_GOLDEN "/qwen3_vl", MANY, ERR));
    assert_int_equal(f.counts.there, done);
    assert_int_equal(f.counts.done, MANY - done);
    assert_int_equal(f.counts.failed + f.counts.failed_before, 1);
}

/* ---- files that cannot be opened ------------------------------------------------------------- */

#ifndef __APPLE__      /* whose linker cannot wrap */
static int open_errno; /* What opening an image fails with; 0: it does not. */

WRAPPED(int, open, (const char *path, int flags, ...))
{
    const size_t n = strlen(path);
    errno = open_errno;
    return open_errno && n > 4 && !strcmp(path + n - 4, ".ppm") ? -1
                                                                : __real_open(path, flags, 0666);
}

static bool no_locks; /* As on a file system that has no locks. */

WRAPPED(int, flock, (int fd, int how))
{
    errno = ENOLCK;
    return no_locks ? -1 : __real_flock(fd, how);
}

TEST(a_file_system_without_locks_is_told)
{
    struct filler f = { .enough = 0 };
    no_locks = true;
    expect_fill(&f, 4, 3, 1, 0, 0);
    no_locks = false;
    assert_non_null(strstr(f.warning, "QV_OK: "));
    assert_non_null(strstr(f.warning, "files cannot be locked here"));
    *f.warning = 0;
    expect_fill(&f, 0, 0, 0, 3, 1);
    assert_string_equal(f.warning, "");
}

/* A clip's record contains the clip's own error. An error of the process, the machine or the file
 * system would fail the next clip as well: it ends the run, and no clip counts as failed. */
static void
fill_and_fail(int error, qv_status ends_with)
{
    struct filler f = { .enough = 0 };
    qv_error err = { 0 };
    open_errno = error;
    const qv_status s = fill_with(&f, QV_GOLDEN "/qwen3_vl", 1, &err);
    open_errno = 0;
    if (s != ends_with)
        fail_msg("%s: %s", strerror(error), qv_status_name(s));
    if (s)
        assert_non_null(strstr(err.text, strerror(error)));
    else
        assert_int_equal(f.counts.failed, 2); /* the image, and one that does not exist */
    assert_int_equal(f.counts.done, 0);
    assert_ok(fill_with(&f, QV_GOLDEN "/qwen3_vl", 1, ERR));
    assert_int_equal(f.counts.done, s ? 1 : 0);
    remove_folder(temp_path("cache"));
}

TEST(a_record_is_of_the_clips_own_failure)
{
    static const int clips[] = { ENOENT, EACCES,       EPERM, EISDIR, ENOTDIR,
                                 ELOOP,  ENAMETOOLONG, ENXIO, EIO,    EILSEQ };
    static const int memory[] = { EMFILE, ENFILE, ENOMEM };
    static const int systems[] = { ENOTCONN, ESTALE, ETIMEDOUT, EHOSTDOWN, ENODEV, EHOSTUNREACH };
    EACH (error, clips)
        fill_and_fail(*error, QV_OK);
    EACH (error, memory)
        fill_and_fail(*error, QV_ENOMEM);
    EACH (error, systems)
        fill_and_fail(*error, QV_EBACKEND);
}

#endif

/* ---- what is in memory, and runs that follow one another ------------------------------------- */

enum { FRAMES = 4, SIDE = 4 }; /* SIDE counts patches. */

struct in_memory {
    struct tiny t;
    qv_cache_fill *fill;
    char file[64 + 64 * 64 * 3];
    uint8_t frames[FRAMES * SIDE * 16 * SIDE * 16 * 3];
    qv_job_source sources[2];
};

static const double seconds[FRAMES] = { 0, 0.5, 1, 1.5 };

static void
close_fill(void *fill)
{
    qv_cache_fill_close(&(qv_cache_fill *){ fill });
}

static void
open_in_memory(struct in_memory *m)
{
    const qv_cache_fill_options o = { .tokens = QV_F32 };
    m->t = tiny_open_model(QV_GOLDEN "/qwen3_vl", "ref", NULL, 0);
    assert_ok(qv_cache_fill_open(temp_path("cache"), &o, &m->fill, ERR) ||
              qv_cache_fill_begin(m->fill, m->t.model, ERR));
    test_ends(m->fill, close_fill);
    assert_int_equal(m->t.info.patch_size, 16);
    const int n = snprintf(m->file, 64, "P6\n64 64\n255\n");
    memset(m->file + n, 'm', 64 * 64 * 3);
    for (size_t i = 0; i < sizeof m->frames; i++)
        m->frames[i] = (uint8_t)(i * 7);
    m->sources[0] = (qv_job_source){ .kind = QV_SOURCE_BYTES,
                                     .bytes = m->file,
                                     .n_bytes = (size_t)n + 64 * 64 * 3 };
    m->sources[1] = (qv_job_source){
        .kind = QV_SOURCE_FRAMES,
        .bytes = m->frames,
        .n_bytes = sizeof m->frames,
        .item = { .n_frames = FRAMES, .grid_thw = { FRAMES / 2, SIDE, SIDE } },
        .timestamps_s = seconds,
        .sampled_fps = 2,
    };
}

static bool
add_in_memory(struct in_memory *m, const char *key, int source)
{
    bool wanted = false;
    assert_ok(qv_cache_fill_add_memory(m->fill, key, &m->sources[source], NULL, &wanted, ERR));
    return wanted;
}

static void
run_in_memory(struct in_memory *m, int64_t done, int64_t frames, int64_t failed)
{
    qv_cache_fill_counts counts;
    assert_ok(qv_cache_fill_run(m->fill, &m->t.model, 1, ERR));
    qv_cache_fill_get_counts(m->fill, &counts);
    assert_int_equal(counts.done, done);
    assert_int_equal(counts.frames, frames);
    assert_int_equal(counts.failed, failed);
}

static void
expect_in_memory(void)
{
    qv_cache *c = open_cache(temp_path("cache"));
    qv_cache_item item = find_item(c, "frames");
    assert_ok(qv_cache_hold(c, &item, ERR));
    assert_int_equal(item.n_timestamps, FRAMES);
    assert_memory_equal(item.timestamps_s, seconds, sizeof seconds);
    assert_true(item.sampled_fps == 2 && item.is_image == 0);
    assert_int_equal(item.bytes, FRAMES * SIDE * 16 * SIDE * 16 * 3);
    qv_cache_release(c, &item);
    expect_record(c, "frames", "\"path\":\"xxh3:");
    expect_record(c, "frames", "\"frames\":4,");
    item = find_item(c, "bytes");
    assert_true(item.key && !item.status && item.is_image == 1);
}

TEST(runs_follow_one_another)
{
    struct in_memory m = { .fill = NULL };
    qv_error err = { 0 };
    open_in_memory(&m);
    assert_true(qv_cache_exists(temp_path("cache")));
    assert_true(add_in_memory(&m, "bytes", 0));
    run_in_memory(&m, 1, 1, 0);
    assert_true(add_in_memory(&m, "forgotten", 0));
    qv_cache_fill_forget(m.fill);
    run_in_memory(&m, 1, 1, 0);
    assert_true(add_in_memory(&m, "frames", 1));
    run_in_memory(&m, 2, 1 + FRAMES, 0);
    expect_in_memory(); /* They are sealed although nothing was ended. */
    assert_ok(qv_cache_fill_end(m.fill, &m.t.model, 1, ERR));
    assert_int_equal(qv_cache_fill_run(m.fill, &m.t.model, 1, &err), QV_EINVAL);
    assert_int_equal(qv_cache_fill_begin(m.fill, m.t.model, &err), QV_EINVAL);
}

TEST(the_same_bytes_are_the_same_clip)
{
    struct in_memory m = { .fill = NULL };
    open_in_memory(&m);
    add_in_memory(&m, "bytes", 0);
    add_in_memory(&m, "frames", 1);
    run_in_memory(&m, 2, 1 + FRAMES, 0);
    test_end(m.fill);

    open_in_memory(&m);
    assert_false(add_in_memory(&m, "bytes", 0));
    assert_false(add_in_memory(&m, "frames", 1));
    m.frames[5] ^= 1;
    assert_true(add_in_memory(&m, "frames", 1));
    m.frames[5] ^= 1;
    static const double later[FRAMES] = { 1, 1.5, 2, 2.5 };
    m.sources[1].timestamps_s = later;
    assert_true(add_in_memory(&m, "frames", 1));
    m.sources[1].timestamps_s = seconds;
    assert_false(add_in_memory(&m, "frames", 1));
    qv_job_source wrong[] = { m.sources[0], m.sources[0] };
    wrong[0].kind = QV_SOURCE_PATCHES;
    wrong[1].n_bytes = 0;
    for (int i = 0; i < 2; i++)
        expect_error(QV_EINVAL, "k: neither the bytes of a file",
                     qv_cache_fill_add_memory(m.fill, "k", &wrong[i], NULL, NULL, ERR));
    qv_cache_fill_forget(m.fill);
}

/* A file that is replaced after it was added, and before it is read, is kept under the size and
 * time of the file that was read. */
TEST(a_file_is_kept_as_it_was_read)
{
    struct in_memory m = { .fill = NULL };
    struct stat st;
    bool wanted = false;
    char path[600];
    snprintf(path, sizeof path, "%s", temp_file("a.ppm", m.file, 0));
    open_in_memory(&m);
    temp_file("a.ppm", m.file, m.sources[0].n_bytes);
    assert_ok(qv_cache_fill_add(m.fill, "a", path, NULL, &wanted, ERR));
    assert_true(wanted);
    temp_file("a.ppm", m.file, m.sources[0].n_bytes + 3); /* A byte or two after it do no harm. */
    const struct timespec times[2] = { { .tv_sec = 7 }, { .tv_sec = 7 } };
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0) | stat(path, &st), 0);
    run_in_memory(&m, 1, 1, 0);
    test_end(m.fill);
    const qv_cache_item item = find_item(open_cache(temp_path("cache")), "a");
    assert_non_null(item.key);
    assert_int_equal(item.bytes, st.st_size);
    assert_int_equal(item.mtime_ns, 7000000000);
}

/* The same bytes are another clip if anything else that its tokens, or its entry, come from is
 * different. Bytes of a file are a file, whatever stands in the fields for frames. */
TEST(frames_of_another_shape_are_another_clip)
{
    struct in_memory m = { .fill = NULL };
    open_in_memory(&m);
    add_in_memory(&m, "bytes", 0);
    add_in_memory(&m, "frames", 1);
    run_in_memory(&m, 2, 1 + FRAMES, 0);
    test_end(m.fill);
    open_in_memory(&m);
    const qv_job_source frames = m.sources[1];
    qv_job_source other[] = { frames, frames, frames, frames, frames, frames };
    memcpy(other[0].item.grid_thw, (int64_t[]){ FRAMES / 2, SIDE / 2, SIDE * 2 },
           sizeof frames.item.grid_thw);
    memcpy(other[1].item.grid_thw, (int64_t[]){ FRAMES / 2, SIDE * 2, SIDE / 2 },
           sizeof frames.item.grid_thw);
    memcpy(other[2].item.grid_thw, (int64_t[]){ FRAMES / 4, SIDE, SIDE * 2 },
           sizeof frames.item.grid_thw);
    other[2].item.n_frames = FRAMES / 2;
    other[3].item.is_image = true;
    other[4].sampled_fps = 1;
    other[5].timestamps_s = NULL;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        m.sources[1] = other[i];
        if (!add_in_memory(&m, "frames", 1))
            fail_msg("case %zu is taken for the same clip", i);
    }
    m.sources[1] = frames;
    assert_false(add_in_memory(&m, "frames", 1));
    m.sources[0].item.n_frames = 3;
    m.sources[0].sampled_fps = 1;
    assert_false(add_in_memory(&m, "bytes", 0));
    qv_cache_fill_forget(m.fill);
}

/* Frames with fewer bytes than their shape needs are never read beyond their end, and frames of a
 * shape that no model accepts are not read at all. Only they fail: the run goes on, and the next
 * run knows that they failed. */
TEST(frames_of_a_wrong_size_cost_themselves)
{
    enum { WRONG = 600 }; /* more than wait in a job at once */
    struct in_memory m = { .fill = NULL };
    char keys[WRONG][12];
    open_in_memory(&m);
    uint8_t *cut = test_alloc(sizeof m.frames / 2);
    memset(cut, 1, sizeof m.frames / 2);
    qv_job_source wrong[2] = { m.sources[1], m.sources[1] };
    wrong[0].bytes = cut;
    wrong[0].n_bytes = sizeof m.frames / 2;
    wrong[1].item.grid_thw[0] = INT64_MAX;
    for (int i = 0; i < WRONG; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i);
        assert_ok(qv_cache_fill_add_memory(m.fill, keys[i], &wrong[i % 2], NULL, NULL, ERR));
        if (i == WRONG / 2)
            assert_true(add_in_memory(&m, "frames", 1));
    }
    assert_true(add_in_memory(&m, "bytes", 0));
    run_in_memory(&m, 2, 1 + FRAMES, WRONG);
    wrong[0].item.n_frames = 0;
    expect_error(QV_EINVAL, "frames: n_frames is 0; it must be at least 1",
                 qv_cache_fill_add_memory(m.fill, "frames", &wrong[0], NULL, NULL, ERR));
    wrong[0].item.n_frames = FRAMES;
    test_end(m.fill);
    open_in_memory(&m);
    for (int i = 0; i < 2; i++) {
        bool wanted = true;
        assert_ok(qv_cache_fill_add_memory(m.fill, keys[i], &wrong[i], NULL, &wanted, ERR));
        assert_false(wanted);
    }
    test_end(m.fill);
    expect_in_memory();
    qv_cache *c = open_cache(temp_path("cache"));
    assert_int_equal(find_item(c, "0").status, QV_EINVAL);
    expect_record(c, "0", "24576 bytes were given; 4 frames of 64x64 need 49152");
}

TEST_EACH(make_images, tempdir_remove);
