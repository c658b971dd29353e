/* SPDX-License-Identifier: MIT */
/* Times what a process for each clip costs more than a thread. Usage: decoder_cost DECODER CLIP..:
 * opens and reads the clips one after another with one decoder, in turn by processes and by
 * threads. Prints, in ms a clip, the best and the median round, and the time of processors, which
 * says most where other programs run. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "clock.h"
#include "decoder_thread.h"
#include "qwenvit_clips.h"

enum { ROUNDS = 41, PROCESS = 0, THREAD, WAYS, MOST_BYTES = 64 << 20 };
static uint8_t frames[MOST_BYTES];

static void
succeed(qv_status status, const qv_error *err)
{
    if (status) {
        fprintf(stderr, "decoder_cost: %s\n", err->text);
        exit(1);
    }
}

static double
cpu_s(int who)
{
    struct rusage use;
    getrusage(who, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

static void
read_clip(const char *path, qv_decoder *decoder)
{
    const qv_clip_options options = { .decoder = decoder };
    qv_error err;
    qv_clip *clip = NULL;
    qv_outcome o;
    int64_t n;
    succeed(qv_clip_open(path, NULL, NULL, &options, &clip, &err), &err);
    qv_clip_get_info(clip, &o);
    do
        succeed(qv_clip_read(clip, frames, MOST_BYTES / 3 / o.width / o.height, &n, NULL, &err),
                &err);
    while (n);
    qv_clip_close(&clip);
}

static int
compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int
main(int argc, char **argv)
{
    static const char *const names[WAYS] = { "process", "thread" };
    double s[WAYS][ROUNDS], cpu[WAYS] = { 0 };
    const int n = argc - 2;
    qv_decoder *decoder;
    qv_error err;
    if (n < 1)
        return 2;
    succeed(qv_decoder_start(argv[1], &decoder, &err), &err);
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++) {
            const double began_s = qv_seconds(), began_cpu_s = cpu_s(RUSAGE_SELF);
            decoder_thread_always = way == THREAD;
            for (int i = 0; i < n; i++)
                read_clip(argv[2 + i], decoder);
            s[way][round] = qv_seconds() - began_s;
            cpu[way] += cpu_s(RUSAGE_SELF) - began_cpu_s;
        }
    decoder_thread_always = false;
    qv_decoder_stop(&decoder);
    cpu[PROCESS] += cpu_s(RUSAGE_CHILDREN);
    puts("ms a clip   best  median     CPU");
    for (int way = 0; way < WAYS; way++) {
        qsort(s[way], ROUNDS, sizeof **s, compare);
        printf("%-8s %7.3f %7.3f %7.3f\n", names[way], s[way][0] * 1e3 / n,
               s[way][ROUNDS / 2] * 1e3 / n, cpu[way] * 1e3 / n / ROUNDS);
    }
    return 0;
}
