/* SPDX-License-Identifier: MIT */
/*
 * Tests the thread rules of qwenvit_clips.h, and the threads of `qwenvit encode`: clips that are
 * read side by side, each decoded by several threads, give the frames that each gives alone. It is
 * for the thread sanitizer, which sees only our own code (tsan.txt).
 */
#define _GNU_SOURCE
#include "test.h"

#include <pthread.h>

#include "backends.h"
#include "command/tool.h"
#include "make_clips.h"
#include "tempdir.h"

enum { N_FRAMES = 12, ROUNDS = 2 };

/* Their decoders have threads for frames, threads for slices, and none. */
static const char *const clips[] = { "x264.mp4", "vp9.webm", "whole.ts", "whole.mkv" };
enum { N_CLIPS = sizeof clips / sizeof *clips };
/* NULL: this FFmpeg cannot make the clip; `again` is the last clip a second time */
static char *paths[N_CLIPS], *again;
static qv_decoder *decoder;

struct worker {
    int clip, threads;
    qv_decoder *decoder; /* NULL: threads of this process decode */
    qv_error error;
    uint64_t hash[ROUNDS]; /* the hash of every frame */
};

static void *
read_clip(void *argument)
{
    struct worker *w = argument;
    const qv_clip_options options = { .num_frames = N_FRAMES,
                                      .threads = w->threads,
                                      .decoder = w->decoder };
    for (int round = 0; round < ROUNDS && !w->error.status; round++) {
        qv_clip *clip = NULL;
        qv_outcome info;
        int64_t n = 1;
        qv_status status = qv_clip_open(paths[w->clip], NULL, NULL, &options, &clip, &w->error);
        if (status)
            break;
        qv_clip_get_info(clip, &info);
        const size_t bytes = 3 * (size_t)info.width * (size_t)info.height;
        uint8_t *rgb = test_alloc(bytes);
        while (!status && n) {
            status = qv_clip_read(clip, rgb, 1, &n, NULL, &w->error);
            for (size_t i = 0; !status && n && i < bytes; i++)
                w->hash[round] = (w->hash[round] ^ rgb[i]) * 0x100000001b3u;
        }
        qv_clip_close(&clip);
    }
    return NULL;
}

static void
expect_same(const struct worker *w, const struct worker *alone)
{
    if (w->error.status)
        fail_msg("%s with %d threads: %s", clips[w->clip], w->threads, w->error.text);
    for (int round = 0; round < ROUNDS; round++)
        if (w->hash[round] != alone->hash[0])
            fail_msg("%s with %d threads, %s: other frames than alone", clips[w->clip], w->threads,
                     w->decoder ? "in a process" : "in threads");
}

/* Reads each clip in two threads of this process and in two decoding processes, all at once. */
TEST(clips_side_by_side)
{
    enum { EACH = 4 };
    static struct worker alone[N_CLIPS], together[N_CLIPS][EACH];
    pthread_t threads[N_CLIPS][EACH];
    for (int c = 0; c < N_CLIPS; c++) {
        alone[c] = (struct worker){ .clip = c, .threads = 1 };
        if (paths[c]) {
            read_clip(&alone[c]);
            expect_same(&alone[c], &alone[c]);
        }
    }
    for (int c = 0; c < N_CLIPS; c++)
        for (int i = 0; paths[c] && i < EACH; i++) {
            together[c][i] = (struct worker){ .clip = c,
                                              .threads = 2 + i % 2,
                                              .decoder = i < 2 ? NULL : decoder };
            assert_int_equal(pthread_create(&threads[c][i], NULL, read_clip, &together[c][i]), 0);
        }
    for (int c = 0; c < N_CLIPS; c++)
        for (int i = 0; paths[c] && i < EACH; i++)
            pthread_join(threads[c][i], NULL);
    for (int c = 0; c < N_CLIPS; c++)
        for (int i = 0; paths[c] && i < EACH; i++)
            expect_same(&together[c][i], &alone[c]);
}

/* Closes clips while the decoder process decodes, or waits for a free slot. */
TEST(clips_closed_early)
{
    for (int i = 0; i < 16; i++) {
        const qv_clip_options options = {
            .fps = 1e6, .max_frames = 40, .threads = 2, .decoder = i % 2 ? NULL : decoder
        };
        qv_clip *clip = NULL;
        assert_ok(qv_clip_open(paths[N_CLIPS - 1], NULL, NULL, &options, &clip, ERR));
        usleep(i % 4 * 5000);
        qv_clip_close(&clip);
        assert_null(clip);
    }
}

static size_t
load_tensors(const char *path, uint8_t *out, size_t room)
{
    uint64_t header;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(&header, 1, sizeof header, f), sizeof header);
    assert_int_equal(fseek(f, (long)header, SEEK_CUR), 0);
    const size_t n = fread(out, 1, room, f);
    fclose(f);
    return n;
}

/* Decodes a clip, computes on the device and writes to the sink, all at once, for two clips. */
TEST(encode_two_clips)
{
    enum { ROOM = 1 << 20 };
    static uint8_t tensors[2][ROOM];
    const char *arguments[] = { paths[N_CLIPS - 1], again };
    for (int b = 0; b < N_TEST_BACKENDS; b++)
        for (int threads = 0; backend_is_here(test_backends[b]) && threads < 2; threads++) {
            const struct tool_options o = { .backend = test_backends[b],
                                            .dtype = QV_F32,
                                            .threads = 1,
                                            .quiet = true,
                                            .json = true,
                                            .json_file = temp_path("log.json"),
                                            .tune_file = temp_path("tune.json"),
                                            .model = QV_GOLDEN "/qwen3_vl",
                                            .output = tempdir,
                                            .output_dtype = QV_F32,
                                            .chunk_rows = 16,
                                            .clip = { .num_frames = N_FRAMES,
                                                      .threads = 2,
                                                      .decoder = threads ? NULL : decoder },
                                            .arguments = arguments,
                                            .n_arguments = 2 };
            assert_int_equal(tool_encode(&o), TOOL_DONE);
            const size_t n = load_tensors(temp_path("whole.mkv.safetensors"), tensors[0], ROOM);
            assert_true(n > 1000 && n < ROOM);
            assert_int_equal(load_tensors(temp_path("again.mkv.safetensors"), tensors[1], ROOM), n);
            assert_memory_equal(tensors[0], tensors[1], n);
        }
}

static int
make_files(void)
{
    if (tempdir_make() || qv_decoder_start(QV_DECODER, &decoder, NULL))
        return -1;
    for (int c = 0; c < N_CLIPS; c++)
        if (clip_is_possible(clips[c])) {
            const clip_bytes bytes = clip_make(clips[c]);
            paths[c] = strdup(temp_file(clips[c], bytes.data, bytes.n));
            free(bytes.data);
        }
    again = strdup(temp_path("again.mkv"));
    return link(paths[N_CLIPS - 1], again);
}

static int
remove_files(void)
{
    qv_decoder_stop(&decoder);
    for (int c = 0; c < N_CLIPS; c++)
        free(paths[c]);
    free(again);
    return tempdir_remove();
}

TEST_GROUP(make_files, remove_files);
