/* SPDX-License-Identifier: MIT */
/* Odd and hostile clips through the public interface: each yields the right frames or an error with
 * the reason, the same for every number of threads, in little time and memory. */
#include "test.h"

#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../decoder/decoder.h"
#include "make_clips.h"
#include "read_clip.h"
#include "start_decoder.h"
#include "wrap.h"

/* ---- what a clip gives ----------------------------------------------------------------------- */

/* The number that each frame's bars show, and its corners' levels. */
static int
number(const struct clip_read *r, int64_t i)
{
    return (int)(r->frames[i].seen >> 32);
}

static int
corner_level(const struct clip_read *r, int64_t i, int corner)
{
    return (int)(r->frames[i].seen >> 8 * corner & 255);
}

static uint64_t
see(const uint8_t *rgb, int width, int height)
{
    uint64_t seen = 0;
    for (int bar = 0; bar < CLIP_BARS; bar++) {
        const int x = (2 * bar + 1) * width / (2 * CLIP_BARS);
        seen |= (uint64_t)(rgb[3 * (height / 2 * width + x)] > 128) << (32 + bar);
    }
    for (int corner = 0; corner < 4; corner++) {
        const int x = (corner % 2 * 2 + 1) * width / 4, y = (corner / 2 * 2 + 1) * height / 4;
        seen |= (uint64_t)rgb[3 * (y * width + x)] << 8 * corner;
    }
    return seen;
}

/* The one place where clips are read. Every frame is asked for. Decoding in this process, so that
 * the sanitizers and the wrapped calls see it; test_isolation.c has the other way. */
static qv_decoder *decoder; /* NULL: in this process */

static struct clip_read
look_through(const char *path, int threads)
{
    const qv_clip_options options = {
        .fps = 1e6, .max_frames = 1 << 20, .threads = threads, .decoder = decoder
    };
    const struct clip_read r = read_clip_seeing(path, &options, see);
    if (r.status && !strstr(r.error.text, path))
        fail_msg("'%s' does not name %s", r.error.text, path);
    return r;
}

/* Reads it with one, two, three threads and with two again: all must give the same. (HEVC with the
 * default number: with others it need not.) */
static struct clip_read
look_through_each_way(const char *path)
{
    static const int some[] = { 2, 3, 2 }, same[] = { 0, 0, 0 };
    const int *threads = strstr(path, "x265") ? same : some;
    const struct clip_read r = look_through(path, 1);
    for (size_t i = 0; i < LENGTH(some); i++) {
        const struct clip_read other = look_through(path, threads[i]);
        if (r.status != other.status || strcmp(r.error.text, other.error.text) != 0 ||
            r.n != other.n || r.info.damaged_frames != other.info.damaged_frames ||
            r.hash != other.hash)
            fail_msg("%s: %d frames, %d damaged, hash %llx, '%s' with one thread; %d, %d, %llx, "
                     "'%s' with %d",
                     path, (int)r.n, (int)r.info.damaged_frames, (unsigned long long)r.hash,
                     r.error.text, (int)other.n, (int)other.info.damaged_frames,
                     (unsigned long long)other.hash, other.error.text, threads[i]);
    }
    return r;
}

/* ---- what it should give --------------------------------------------------------------------- */

typedef struct expected {
    const char *name;
    const char *error;   /* part of a QV_EFORMAT error; NULL: it can be read */
    int frames, first;   /* how many, and the number of the first */
    bool some;           /* how many is FFmpeg's affair: 1 to `frames`, in their order, */
    bool none;           /* or none */
    const char *corners; /* which one of the clip's is at each corner; no numbers then */
    int width, height;   /* 0: the usual ones */
    int rotation;        /* clockwise, in degrees */
} expected;

static void
check_frames(const expected *e, const struct clip_read *o)
{
    if (o->n > e->frames || o->n < (e->some ? 1 : e->frames) || o->info.damaged_frames)
        fail_msg("%s: %d frames and %d damaged, not %d", e->name, (int)o->n,
                 (int)o->info.damaged_frames, e->frames);
    assert_int_equal(o->info.source_frames, o->n);
    if (e->rotation)
        assert_int_equal(o->info.rotation, e->rotation);
    assert_int_equal(o->info.source_width, e->width ? e->width : CLIP_WIDTH);
    assert_int_equal(o->info.source_height, e->height ? e->height : CLIP_HEIGHT);
    for (int64_t i = 0; i < o->n; i++) {
        const bool right = e->some ? i == 0 || number(o, i) > number(o, i - 1)
                                   : number(o, i) == (i + e->first) % (1 << CLIP_BARS);
        if (!e->corners && !right)
            fail_msg("%s: frame %d shows number %d", e->name, (int)i, number(o, i));
        for (int corner = 0; e->corners && corner < 4; corner++) {
            const int want = clip_corners[e->corners[corner] - '0'];
            if (abs(corner_level(o, i, corner) - want) > 6)
                fail_msg("%s: frame %d: corner %d is %d, not %d", e->name, (int)i, corner,
                         corner_level(o, i, corner), want);
        }
    }
}

static void
check_clip(const expected *e)
{
    const char *error = e->none ? "has no frames" : e->error;
    clip_write(e->name);
    const struct clip_read o = look_through_each_way(e->name);
    if (!e->error && !o.status)
        check_frames(e, &o);
    else if (!error || o.status != QV_EFORMAT || !strstr(o.error.text, error))
        fail_msg("%s: status %d, %d frames, '%s'; expected '%s'", e->name, o.status, (int)o.n,
                 o.error.text, error ? error : "frames");
}

static void
check_clips(const expected *e, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check_clip(&e[i]);
}

TEST(test_hardly_clips)
{
    static const expected clips[] = {
        { .name = "empty.mp4", .error = "is empty" },
        { .name = "text.mp4", .error = "not a clip or image of a known format" },
        { .name = "audio.mov",
          .error = "no video stream: 'mov,mp4,m4a,3gp,3g2,mj2' with 1 stream" },
        { .name = "cover.mkv", .error = "including an attached cover picture" },
        { .name = "nothing.mp4", .error = "the 'mpeg4' video has no frames" },
        { .name = "nothing.avi", .error = "the 'mpeg4' video has no frames" },
        { .name = "cut.png", .error = "cut short: the file ends before the image does" },
        { .name = "cut.gif", .error = "cut short: the file ends before the image does" },
        { .name = "cut.webp", .error = "cut short: the file ends before the image does" },
        { .name = "animated.webp", .error = "an animated WebP" },
        { .name = "float.tiff",
          .error = "floating-point numbers; integers of 8 or 16 bits are read" },
        { .name = "image.heic", .error = "a HEIF image (HEIC), which this FFmpeg cannot open" },
        { .name = "no-moov.mp4", .error = "opening the container failed" },
        { .name = "encrypted.mp4", .error = "the video is encrypted" },
        { .name = "image.mp4", .frames = 1 },
        { .name = "still.jpg", .frames = 1 },
        { .name = "one.mp4", .frames = 1 },
        { .name = "two.mp4", .frames = 2 },
        { .name = "three.mp4", .frames = 3 },
    };
    check_clips(clips, LENGTH(clips));
}

/* Codes of black and white beyond what an int holds are no codes: libtiff refuses them. The image
 * is what it would be without them. */
TEST(test_huge_levels)
{
    clip_write("levels.tiff");
    clip_write("huge-levels.tiff");
    const struct clip_read usual = look_through("levels.tiff", 1);
    const struct clip_read huge = look_through("huge-levels.tiff", 1);
    assert_int_equal(usual.status, QV_OK);
    assert_int_equal(huge.status, QV_OK);
    assert_int_equal(huge.n, 1);
    assert_true(huge.hash == usual.hash);
}

TEST(test_wrong_counts)
{
    static const expected clips[] = {
        { .name = "over.mp4", .frames = 40 },  { .name = "under.mp4", .frames = 40 },
        { .name = "over.avi", .frames = 40 },  { .name = "under.avi", .frames = 40 },
        { .name = "over.apng", .frames = 10 },
    };
    check_clips(clips, LENGTH(clips));
}

/* Frames are counted, not timed: nonsensical times change the set of frames only through an edit
 * list, or where FFmpeg drops frames without a place. */
TEST(test_time)
{
    static const expected clips[] = {
        { .name = "vfr.mp4", .frames = 40 },
        { .name = "vfr.mkv", .frames = 40 },
        { .name = "gaps.mp4", .frames = 40 },
        { .name = "negative.mp4", .frames = 20, .first = 20 },
        { .name = "negative.nut", .frames = 40 },
        { .name = "whole.m4v", .frames = 40 }, /* has no times */
        { .name = "at-once.mp4", .frames = 40 },
        { .name = "huge-steps.mp4", .frames = 40, .some = true },
        { .name = "backwards.mp4", .frames = 40, .some = true },
        { .name = "wild-offsets.mp4", .frames = 40, .some = true, .none = true }, /* 9: none */
        { .name = "no-timescale.mp4", .frames = 40, .some = true },
        { .name = "last-day.mp4", .frames = 40, .some = true },
        { .name = "start-at-5.mp4", .frames = 35, .first = 5 },
        { .name = "wait-long.mp4", .frames = 40 },
        { .name = "lasts-2-31.mp4", .frames = 40 },
        { .name = "lasts-2-63.mp4", .frames = 40 },
        { .name = "past-the-end.mp4", .error = "the 'mpeg4' video has no frames" },
    };
    check_clips(clips, LENGTH(clips));
    clip_write("show-twice.mp4");
    const struct clip_read o = look_through_each_way("show-twice.mp4");
    assert_int_equal(o.n, 80);
    for (int i = 0; i < 80; i++)
        assert_int_equal(number(&o, i), i % 40);
}

TEST(test_shapes)
{
    enum { W = CLIP_WIDTH, H = CLIP_HEIGHT };
    static const expected clips[] = {
        { .name = "upright.mp4", .frames = 4, .corners = "0123" },
        { .name = "turned-90.mp4",
          .frames = 4,
          .corners = "2031",
          .width = H,
          .height = W,
          .rotation = 90 },
        { .name = "turned-180.mp4", .frames = 4, .corners = "3210", .rotation = 180 },
        { .name = "turned-270.mp4",
          .frames = 4,
          .corners = "1302",
          .width = H,
          .height = W,
          .rotation = 270 },
        { .name = "mirror.mp4", .frames = 4, .corners = "3210" },
        { .name = "upside-down.mp4", .frames = 4, .corners = "0123" },
        { .name = "transpose.mp4", .frames = 4, .corners = "2031", .width = H, .height = W },
        { .name = "transverse.mp4", .frames = 4, .corners = "1302", .width = H, .height = W },
        { .name = "zero-matrix.mp4", .frames = 4, .corners = "0123" },
        { .name = "extreme-matrix.mp4", .frames = 4, .corners = "3210" },
        /* of 45 degrees, as integers */
        { .name = "nan-matrix.mp4", .frames = 4, .corners = "2031", .width = H, .height = W },
        { .name = "frames-turned.avi", .frames = 4, .corners = "0123" },
        { .name = "anamorphic.mp4", .frames = 4 },
        { .name = "odd.mp4", .frames = 10, .width = 97, .height = 63 },
        { .name = "odd.mkv", .frames = 10, .width = 33, .height = 1 },
        { .name = "wide.avi", .frames = 3, .width = 16384, .height = 88 },
        { .name = "thin.mkv", .error = "too long and thin" },
        { .name = "too-thin.mkv", .error = "too long and thin" },
    };
    check_clips(clips, LENGTH(clips));
    clip_write("dot.mkv"); /* one pixel shows no number, but which bit of it */
    struct clip_read o = look_through_each_way("dot.mkv");
    assert_int_equal(o.n, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(number(&o, i), i % 2 ? 63 : 0);
    clip_write("turned-late.avi"); /* clips are turned by their container alone */
    o = look_through_each_way("turned-late.avi");
    assert_int_equal(o.n, 20);
    assert_int_equal(o.info.width, W);
    for (int i = 0; i < 20; i++)
        assert_int_equal(number(&o, i), i);
}

TEST(test_kinds)
{
    static const expected clips[] = {
        { .name = "sizes.avi", .frames = 40 },
        { .name = "sizes.ts", .frames = 40, .some = true }, /* loses those held back */
        { .name = "formats.avi", .frames = 40 },
        { .name = "formats.mov", .frames = 40 },
        { .name = "ranges.avi", .frames = 8, .corners = "0123" },
        { .name = "yuv444.mkv", .frames = 10 },
        { .name = "ten-bits.mkv", .frames = 10 },
        { .name = "sixteen-bits.mkv", .frames = 10 },
        { .name = "grey.mkv", .frames = 10 },
        { .name = "alpha.mkv", .frames = 10 },
        { .name = "palette.mov", .frames = 10 },
        { .name = "interlaced.mp4", .frames = 10 },
        { .name = "interlaced.ts", .frames = 10 },
        { .name = "reordered.mp4", .frames = 12 },
        { .name = "reordered-13.mp4", .frames = 13 },
        { .name = "reordered.ts", .frames = 14 },
        { .name = "whole.gif", .frames = 20 },
    };
    check_clips(clips, LENGTH(clips));
}

/* Nothing but the file itself is ever read. clips.sh watches the system calls for that; here a
 * decoder that is ended when it tries to open anything gives the same. (Newer versions of FFmpeg
 * know HLS by the file's name alone, and are not told the name.) */
TEST(test_references)
{
    static const expected clips[] = {
        { .name = "hls.mp4", .error = "not" },
        { .name = "hls-master.mp4", .error = "not" },
        { .name = "dash.mp4", .error = "not" },
        { .name = "concat.mp4", .error = "the content is 'concat', which is not supported" },
        { .name = "sdp.mp4", .error = "not" },
        { .name = "subfile.mp4", .error = "not a clip" },
        { .name = "http.mp4", .error = "not a clip" },
        { .name = "rtsp.mp4", .error = "not a clip" },
        { .name = "reference.mp4", .error = "not" },
        { .name = "imf.mp4", .error = "not" },
        { .name = "elsewhere-alias.mov", .error = "the 'mpeg4' video has no frames" },
        { .name = "elsewhere-url.mov", .frames = 4 }, /* FFmpeg knows no such reference */
    };
    clip_write("one.mp4");
    check_clips(clips, LENGTH(clips));
#ifdef QV_FAULTY_DECODER
    decoder = start("strict");
    check_clips(clips, LENGTH(clips));
    decoder = NULL;
#endif
}

/* ---- damage ---------------------------------------------------------------------------------- */

static const char *const whole[] = { "back.mp4",  "front.mp4", "pieces.mp4", "whole.mkv",
                                     "whole.avi", "whole.ts",  "vp8.webm",   "x265.mp4",
                                     "whole.m4v", "whole.gif", "x264.mp4",   "vp9.webm" };

/* A truncated file causes an error, or yields its first frames. The last one may be half a frame,
 * and a frame shown before it may be missing. */
TEST(test_cut)
{
    enum { PARTS = 32, TAIL = 3 }; /* TAIL: frames that may be so */
    for (size_t c = 0; c < LENGTH(whole); c++) {
        if (!clip_is_possible(whole[c]))
            continue;
        const clip_bytes bytes = clip_make(whole[c]);
        int most = 0, some = 0;
        for (size_t part = 1; part <= PARTS; part++) {
            clip_write_bytes(whole[c], (clip_bytes){ bytes.data, bytes.n * part / PARTS });
            const struct clip_read o = look_through_each_way(whole[c]);
            assert_true(o.status == QV_OK || o.status == QV_EFORMAT);
            if (o.n < most && !o.status) /* more of the file, no fewer frames */
                fail_msg("%s: part %d: %d frames, not %d", whole[c], (int)part, (int)o.n, most);
            for (int i = 0; i + TAIL < o.n; i++)
                if (number(&o, i) != i)
                    fail_msg("%s: part %d: frame %d of %d shows %d, %d damaged", whole[c],
                             (int)part, i, (int)o.n, number(&o, i), (int)o.info.damaged_frames);
            most = o.status ? most : (int)o.n;
            some += part < PARTS && o.n > 0;
        }
        assert_true(most == 40 || most == 20);
        assert_true((some > 3) == (c > 0)); /* without its end back.mp4 is nothing */
        free(bytes.data);
    }
}

/* Bits flipped at a rate, evenly from `first` on; at least one. */
static void
flip_bits(clip_bytes bytes, size_t first, double rate, uint32_t seed)
{
    const double bits = 8.0 * (double)(bytes.n - first);
    const int n = (int)fmax(1, bits * rate);
    for (int i = 0; i < n; i++) {
        const size_t bit = (size_t)(bits * (test_random(&seed) / 4294967296.0));
        bytes.data[first + bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

TEST(test_bit_flips)
{
    enum { SEEDS = 4 };
    EACH (one, whole) {
        if (!clip_is_possible(*one))
            continue;
        const clip_bytes bytes = clip_make(*one);
        clip_bytes copy = { malloc(bytes.n), bytes.n };
        int64_t damaged = 0;
        for (int round = 0; round < 5 * SEEDS; round++) {
            memcpy(copy.data, bytes.data, bytes.n);
            flip_bits(copy, bytes.n / 4, pow(10, -2 - round % 5), (uint32_t)round);
            clip_write_bytes(*one, copy);
            const struct clip_read o = look_through_each_way(*one);
            assert_true(o.status == QV_OK || o.status == QV_EFORMAT);
            damaged += o.status || o.info.damaged_frames;
        }
        assert_true(damaged > SEEDS / 2); /* of those with hundreds of flips at least */
        free(copy.data);
        free(bytes.data);
    }
}

/* A JPEG that ends early (but not just before its end marker), or whose bits are flipped, is
 * reported as damaged, or is refused. */
TEST(test_damaged_jpeg)
{
    enum { PARTS = 64, SEEDS = 64 };
    static const char name[] = "still.jpg";
    const clip_bytes bytes = clip_make(name);
    clip_bytes copy = { malloc(bytes.n), bytes.n };
    int damaged = 0, refused = 0;
    for (size_t part = 1; part < PARTS; part++) {
        clip_write_bytes(name, (clip_bytes){ bytes.data, bytes.n * part / PARTS });
        const struct clip_read o = look_through(name, 1);
        refused += o.status == QV_EFORMAT;
        damaged += !o.status && o.n == 1 && o.info.damaged_frames == 1;
    }
    if (damaged + refused < PARTS - 2 || damaged < PARTS / 8)
        fail_msg("%d of %d cuts damaged, %d refused", damaged, PARTS, refused);
    for (int seed = 0; seed < SEEDS; seed++) {
        memcpy(copy.data, bytes.data, bytes.n);
        flip_bits(copy, bytes.n / 8, pow(10, -1 - seed % 4), (uint32_t)seed);
        clip_write_bytes(name, copy);
        const struct clip_read o = look_through(name, 1);
        assert_true(o.status == QV_OK || o.status == QV_EFORMAT);
        assert_true(o.status || o.info.damaged_frames <= 1);
    }
    free(copy.data);
    free(bytes.data);
}

/* ---- bombs ----------------------------------------------------------------------------------- */

static long
peak_mib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    return usage.ru_maxrss >> 20;
#else
    return usage.ru_maxrss >> 10;
#endif
}

/* Reads the clip in a separate process, so that its peak of memory does not include the tests'. The
 * time is the process's CPU time, since other processes may be busy. */
static void
check_bomb(const expected *e)
{
    enum { LIMIT_MIB = 512, LIMIT_S = 10 };
    clip_write(e->name);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        const long before = peak_mib();
        alarm(12 * LIMIT_S); /* for one that waits */
        const struct clip_read o = look_through(e->name, 2);
        const bool told = e->error ? o.status == QV_EFORMAT && strstr(o.error.text, e->error)
                                   : o.status == QV_OK && o.n == e->frames;
        const long grew = peak_mib() - before;
        const double took_s = (double)clock() / CLOCKS_PER_SEC;
        const bool good = told && grew <= LIMIT_MIB && took_s <= LIMIT_S;
        if (!good)
            fprintf(stderr, "%s: %d frames, '%s', %ld MiB, %.1f s\n", e->name, (int)o.n,
                    o.error.text, grew, took_s);
        _exit(!good);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    if (how)
        fail_msg("%s: ended as %x", e->name, (unsigned)how);
}

TEST(test_bombs)
{
    static const char too_large[] = "; at most 16384x16384 pixels are supported";
    static const expected bombs[] = {
        { .name = "huge.png", .error = too_large },
        { .name = "huge-png.mp4", .error = too_large },
        { .name = "huge-jpeg.avi", .error = too_large },
        { .name = "huge.jpg", .error = too_large },
#ifdef QV_WITH_JPEG
        { .name = "scans.jpg", .error = "it has more than 100 scans" },
#endif
        { .name = "huge-raw.mov", .error = "no frame of the 'rawvideo' video can be decoded" },
        { .name = "huge-entry.mp4", .frames = 4 }, /* the frames themselves are small */
        { .name = "millions.mp4", .error = "frames or more; at most 4194304 are supported" },
        { .name = "too-many.mp4", .error = "the container's tables need" },
        { .name = "often.mp4", .error = "frames or more; at most 4194304 are supported" },
        { .name = "streams-1000.mkv", .error = "1000 streams; at most 100 are supported" },
        { .name = "billions.mp4", .error = "the 'mpeg4' video has no frames" },
    };
    EACH (c, bombs)
        check_bomb(c);
}

/* ---- unreadable files ------------------------------------------------------------------------ */

TEST(test_no_files)
{
    assert_int_equal(mkfifo("fifo.mp4", 0600), 0);
    assert_int_equal(mkdir("folder.mp4", 0700), 0);
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    const struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "socket.mp4" };
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
    static const char *const names[] = { "fifo.mp4", "folder.mp4", "socket.mp4", "/dev/zero",
                                         "/dev/null" };
    EACH (c, names) {
        const struct clip_read o = look_through(*c, 1);
        assert_int_equal(o.status, QV_EIO);
        if (!strstr(o.error.text, "not a regular file"))
            fail_msg("%s", o.error.text);
    }
    close(listener);
}

#ifndef __APPLE__ /* whose linker cannot wrap functions */

/* What happens to reads of regular files; the linker redirects all of them here. */
static atomic_int reads, reads_until; /* something goes wrong: 0 is never */
static void (*wrong)(void);           /* what it is; NULL: the read fails */
static bool crumbs;                   /* every read gives one byte and is interrupted before it */
static bool padding; /* a read gives the beginning of a JPEG file, and then padding for ever */

/* Returns how many bytes may be read; -1 with errno for none. */
static ssize_t
meddle(int fd, size_t n)
{
    struct stat info;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode))
        return (ssize_t)n;
    const int number = atomic_fetch_add(&reads, 1) + 1;
    if (crumbs && number % 2) {
        errno = EINTR;
        return -1;
    }
    if (number == reads_until && wrong)
        wrong();
    if (reads_until && number >= reads_until && !wrong) {
        errno = EIO;
        return -1;
    }
    return crumbs && n ? 1 : (ssize_t)n;
}

WRAPPED(ssize_t, read, (int fd, void *buffer, size_t n))
{
    const ssize_t may = meddle(fd, n);
    return may < 0 ? -1 : __real_read(fd, buffer, (size_t)may);
}

WRAPPED(ssize_t, pread, (int fd, void *buffer, size_t n, off_t at))
{
    const ssize_t may = meddle(fd, n);
    if (padding && reads >= 100000)
        return 0; /* if nobody stops, the file ends eventually */
    if (padding) {
        memset(buffer, 0xff, n);
        if (!at && n > 1)
            ((uint8_t *)buffer)[1] = 0xd8;
        return (ssize_t)n;
    }
    return may < 0 ? -1 : __real_pread(fd, buffer, (size_t)may, at);
}

static struct clip_read
look_meddled(const char *path, int until, void (*what)(void))
{
    reads = 0;
    reads_until = until;
    wrong = what;
    const struct clip_read r = look_through(path, 1);
    reads_until = 0;
    return r;
}

TEST(test_failing_reads)
{
    clip_write("long.avi");
    const struct clip_read good = look_meddled("long.avi", 0, NULL);
    const int n = reads;
    assert_true(n > 6 && good.n == 300);
    for (int until = 1; until <= n; until++) {
        const struct clip_read o = look_meddled("long.avi", until, NULL);
        if (o.status != QV_EIO || !strstr(o.error.text, strerror(EIO)))
            fail_msg("read %d of %d fails: status %d, '%s', %d frames", until, n, o.status,
                     o.error.text, (int)o.n);
    }
}

TEST(test_crumbs)
{
    clip_write("front.mp4");
    const struct clip_read good = look_through("front.mp4", 1);
    crumbs = true;
    const struct clip_read o = look_through("front.mp4", 1);
    crumbs = false;
    assert_int_equal(o.n, 40);
    assert_true(o.hash == good.hash);
}

static void
shrink(void)
{
    assert_int_equal(truncate("long.avi", 20000), 0);
}

static void
vanish(void)
{
    assert_int_equal(truncate("long.avi", 0), 0);
}

static void
grow(void)
{
    assert_int_equal(truncate("long.avi", 1 << 22), 0);
}

/* If a file changes while it is read, at any moment, reading ends with frames or an error, and the
 * frames of a file that grew are never returned as a whole clip of either size. */
TEST(test_changing_files)
{
    static void (*const changes[])(void) = { shrink, vanish, grow };
    const clip_bytes bytes = clip_make("long.avi");
    EACH (one, changes)
        for (int until = 1; until < 24; until++) {
            clip_write_bytes("long.avi", bytes);
            const struct clip_read o = look_meddled("long.avi", until, *one);
            assert_true(o.status == QV_OK || o.status == QV_EFORMAT || o.status == QV_EIO);
            assert_true(o.status || o.n == o.info.n_frames);
            const bool told =
                o.status == QV_EFORMAT && strstr(o.error.text, "changed while it was read") != NULL;
            if (*one == grow) /* the last reads may come when all frames are there */
                assert_true(told || (until > 1 && o.n == 300));
        }
    free(bytes.data);
}

/* A JPEG file that is endless padding. */
static atomic_bool stop_padding;
static int signs_of_life;

static void
stop_reading(void)
{
    atomic_store(&stop_padding, true);
}

static void
note_life(void *user)
{
    signs_of_life++;
}

/* Padding (0xff before a marker) costs one system call per page, not per byte. */
TEST(test_padding)
{
    enum { PADDING = 1 << 20 };
    const clip_bytes image = clip_make("still.jpg");
    const clip_bytes padded = { malloc(image.n + PADDING), image.n + PADDING };
    assert_non_null(padded.data);
    memcpy(padded.data, image.data, 2);
    memset(padded.data + 2, 0xff, PADDING);
    memcpy(padded.data + 2 + PADDING, image.data + 2, image.n - 2);
    clip_write_bytes("still.jpg", image);
    clip_write_bytes("padded.jpg", padded);
    const struct clip_read good = look_meddled("still.jpg", 0, NULL);
    const struct clip_read o = look_meddled("padded.jpg", 0, NULL);
    assert_int_equal(good.status, QV_OK);
    assert_int_equal(o.status, QV_OK);
    assert_true(o.hash == good.hash);
    assert_in_range(reads, PADDING / 65536, PADDING / 512); /* several walks go over it */
    free(padded.data);
    free(image.data);
}

/* A source that is stopped while it skips padding ends with the current page; until then it signals
 * life. */
TEST(test_stop_in_padding)
{
    const qvm_watch watch = { .stop = &stop_padding, .alive = note_life };
    AVFrame *frame = av_frame_alloc();
    qvm_source source = { .watch = &watch, .fd = open("endless.jpg", O_RDWR | O_CREAT, 0600) };
    qv_error err;
    assert_true(frame && source.fd >= 0);
    assert_int_equal(ftruncate(source.fd, (off_t)1 << 40), 0);
    padding = true;
    assert_true(qvm_source_find_kind(&source));
    for (int walk = 0; walk < 3; walk++) {
        reads = signs_of_life = 0;
        reads_until = 20;
        wrong = stop_reading;
        atomic_store(&stop_padding, false);
        if (walk == 0)
            assert_false(qvm_jpeg_is_readable(&source));
        else if (walk == 1)
            assert_int_equal(qvm_find_orientation(&source), 0);
        else
            qvm_jpeg_read(&source, frame, &err);
        assert_in_range(reads, 20, 21);
        assert_in_range(signs_of_life, 18, 21);
    }
    padding = false;
    reads_until = 0;
    av_frame_free(&frame);
    close(source.fd);
}

#endif

/* ---- main ------------------------------------------------------------------------------------ */

TEST_GROUP(clips_enter_folder, clips_leave_folder);
