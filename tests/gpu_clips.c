/* SPDX-License-Identifier: MIT */
/*
 * gpu_clips PROGRAM [threads=N] [repeat=N] [gpu=N] [fps=F] [max_pixels=N] [only=gpu|cpu] [quiet=1]
 * [again=N] CLIP... tests that a GPU's decoders return the CPU's frames. It reads each clip with
 * both, `repeat` times in `threads` threads at once, and reports which clips were equal, which were
 * left to the CPU and why, which failed, and how long both took. With again=N the CPU reads each
 * clip N more times, with as many threads as FFmpeg chooses; clips whose frames then differ, as
 * damage may cause, are counted and not compared. It exits with 1 if frames differ. PROGRAM is
 * qwenvit-decoder.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "clips/decoders.h"
#include "clock.h"
#include "qwenvit_clips.h"

struct read {
    qv_status status;
    int64_t n;
    uint64_t sum;
    qv_outcome info;
    char text[200];
};

static struct {
    int threads, repeat, gpu, quiet, again;
    double fps;
    long long max_pixels;
    const char *only;
    char **clips;
    int n_clips;
    qv_decoder *decoder;
} o = { .threads = 1, .repeat = 1, .only = "" };

static struct read *reads[3]; /* [QV_DECODE_CPU and GPU][n_clips] */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int next_clip;
static qv_decode decode;
static bool is_again; /* the CPU reads once more */
static bool *unsure;  /* [n_clips]: the CPU does not repeat itself */

static uint64_t
add_up(uint64_t sum, const uint8_t *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ at[i]) * 1099511628211U;
    return sum;
}

static qv_status
open_clip(const char *path, qv_decode by, qv_clip **clip, qv_error *err)
{
    const qv_clip_options options = { .threads = o.threads > 1 && !is_again,
                                      .fps = o.fps,
                                      .max_pixels = o.max_pixels,
                                      .decoder = o.decoder,
                                      .decode = by,
                                      .gpu = o.gpu };
    return qv_clip_open(path, NULL, NULL, &options, clip, err);
}

static void
read_clip(const char *path, struct read *r)
{
    qv_clip *clip = NULL;
    qv_error err = { QV_OK, "" };
    *r = (struct read){ .sum = 14695981039346656037U };
    r->status = open_clip(path, decode, &clip, &err);
    if (!r->status) {
        qv_clip_get_info(clip, &r->info);
        const size_t bytes = 3 * (size_t)r->info.width * (size_t)r->info.height;
        uint8_t *frame = malloc(bytes);
        int64_t n = 1;
        while (!r->status && n) {
            r->status = qv_clip_read(clip, frame, 1, &n, NULL, &err);
            if (!r->status && n) {
                r->n++;
                r->sum = add_up(r->sum, frame, o.quiet ? 64 : bytes);
            }
        }
        free(frame);
        qv_clip_get_info(clip, &r->info);
        qv_clip_close(&clip);
    }
    snprintf(r->text, sizeof r->text, "%.*s", (int)sizeof r->text - 1, err.text);
}

static bool
is_same(const struct read *a, const struct read *b)
{
    return a->status == b->status && a->n == b->n && a->sum == b->sum &&
           a->info.damaged_frames == b->info.damaged_frames;
}

static void *
work(void *none)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        const int i = next_clip++;
        pthread_mutex_unlock(&lock);
        if (i >= o.n_clips * o.repeat)
            return none;
        struct read r;
        read_clip(o.clips[i % o.n_clips], &r);
        const struct read *before = &reads[decode][i];
        if (is_again)
            unsure[i % o.n_clips] |= !is_same(&r, before);
        else
            reads[decode][i] = r;
    }
}

static double
cpu_seconds(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void
run(qv_decode which)
{
    pthread_t threads[64];
    decode = which;
    next_clip = 0;
    if (!is_again)
        reads[which] = calloc((size_t)(o.n_clips * o.repeat), sizeof **reads);
    const double began_s = qv_seconds();
    for (int i = 0; i < o.threads; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < o.threads; i++)
        pthread_join(threads[i], NULL);
    const double took_s = qv_seconds() - began_s;
    double frames = 0;
    for (int i = 0; i < o.n_clips * o.repeat; i++)
        frames += (double)reads[which][i].info.source_frames;
    printf("%s: %d clips in %.2f s: %.2f clips and %.0f frames of the clips per second\n",
           qv_decode_name(which), o.n_clips * o.repeat, took_s, o.n_clips * o.repeat / took_s,
           frames / took_s);
}

/* Reads the next frame of each and reports where they differ. False: they are equal, and there may
 * be more. */
static bool
explain_frame(qv_clip *clips[2], uint8_t *frames[2], const qv_outcome *info, int frame)
{
    const int bytes = 3 * info->width * info->height;
    int64_t n[2] = { 0, 0 };
    int different = 0, most = 0, first = -1;
    for (int i = 0; i < 2; i++)
        if (qv_clip_read(clips[i], frames[i], 1, &n[i], NULL, NULL))
            n[i] = -1;
    for (int i = 0; n[0] == 1 && n[1] == 1 && i < bytes; i++) {
        const int by = abs(frames[0][i] - frames[1][i]);
        first = by && first < 0 ? i : first;
        different += by > 0;
        most = by > most ? by : most;
    }
    if (different)
        printf("  frame %d: %d of %d bytes differ, by %d at most, from x %d, y %d on\n", frame,
               different, bytes, most, first / 3 % info->width, first / 3 / info->width);
    if (n[0] != n[1])
        printf("  frame %d: %d by the CPU, %d by the GPU\n", frame, (int)n[0], (int)n[1]);
    return different || n[0] != n[1] || n[0] != 1;
}

static void
explain(const char *path)
{
    qv_clip *clips[2] = { NULL, NULL };
    qv_outcome info = { .width = 0 };
    if (!open_clip(path, QV_DECODE_CPU, &clips[0], NULL) &&
        !open_clip(path, QV_DECODE_GPU, &clips[1], NULL)) {
        qv_clip_get_info(clips[0], &info);
        uint8_t *frames[2];
        for (int i = 0; i < 2; i++)
            frames[i] = malloc(3 * (size_t)info.width * (size_t)info.height);
        for (int frame = 0; !explain_frame(clips, frames, &info, frame); frame++)
            ;
        for (int i = 0; i < 2; i++)
            free(frames[i]);
        qv_outcome ends[2];
        for (int i = 0; i < 2; i++)
            qv_clip_get_info(clips[i], &ends[i]);
        printf("  damaged: %lld by the CPU, %lld by the GPU\n", (long long)ends[0].damaged_frames,
               (long long)ends[1].damaged_frames);
    }
    for (int i = 0; i < 2; i++)
        qv_clip_close(&clips[i]);
}

/* 1 where they differ. */
static int
compare(int i, int counts[4])
{
    if (unsure[i % o.n_clips]) {
        counts[3]++;
        return 0;
    }
    const struct read *c = &reads[QV_DECODE_CPU][i], *g = &reads[QV_DECODE_GPU][i];
    const bool same = is_same(c, g);
    const bool there = g->info.decoded_by == QV_DECODE_GPU;
    counts[!same ? 2 : !there]++;
    if (!same || !o.quiet)
        printf("%s: %s, %lld frames of %s %dx%d, by the %s%s%s%s%s\n", o.clips[i % o.n_clips],
               same ? "equal" : "DIFFERS", (long long)c->n, c->info.codec, c->info.source_width,
               c->info.source_height, qv_decode_name(g->info.decoded_by),
               *g->info.not_gpu ? " since " : "", g->info.not_gpu, *g->text ? ": " : "", g->text);
    if (!same)
        explain(o.clips[i % o.n_clips]);
    return !same;
}

static bool
set_option(const char *text)
{
    char value[16];
    if (sscanf(text, "only=%3s", value) == 1) {
        o.only = value[0] == 'g' ? "gpu" : "cpu";
        return true;
    }
    return sscanf(text, "threads=%d", &o.threads) == 1 ||
           sscanf(text, "max_pixels=%lld", &o.max_pixels) == 1 ||
           sscanf(text, "repeat=%d", &o.repeat) == 1 || sscanf(text, "gpu=%d", &o.gpu) == 1 ||
           sscanf(text, "fps=%lf", &o.fps) == 1 || sscanf(text, "again=%d", &o.again) == 1 ||
           sscanf(text, "quiet=%d", &o.quiet) == 1;
}

int
main(int argc, char **argv)
{
    qv_error err;
    int a = 2, different = 0, counts[4] = { 0 };
    for (; a < argc && set_option(argv[a]); a++)
        ;
    o.clips = argv + a;
    o.n_clips = argc - a;
    if (argc < 3 || o.n_clips < 1 || o.threads > 64)
        return 2;
    unsure = calloc((size_t)o.n_clips, sizeof *unsure);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (qv_decoder_start(argv[1], &o.decoder, &err) ||
        qv_decoder_gpu(o.decoder, o.gpu, true, &err)) {
        printf("%s\n", err.text);
        return 4;
    }
    if (strcmp(o.only, "gpu") != 0)
        run(QV_DECODE_CPU);
    for (is_again = true; o.again > 0; o.again--)
        run(QV_DECODE_CPU);
    is_again = false;
    if (strcmp(o.only, "cpu") != 0)
        run(QV_DECODE_GPU);
    for (int i = 0; !*o.only && i < o.n_clips * o.repeat; i++)
        different += compare(i, counts);
    const double here_s = cpu_seconds(RUSAGE_SELF);
    qv_decoder_stop(&o.decoder);
    printf(
        "equal on the GPU %d, equal on the CPU %d, different %d, not repeated by the CPU %d; CPU "
        "seconds: here %.2f, processes %.2f\n",
        counts[0], counts[1], counts[2], counts[3], here_s, cpu_seconds(RUSAGE_CHILDREN));
    for (int i = 0; i < 3; i++)
        free(reads[i]);
    free(unsure);
    return different != 0;
}
