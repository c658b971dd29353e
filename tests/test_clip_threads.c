/* SPDX-License-Identifier: MIT */
/*
 * Tests the thread rules of qwenvit_clips.h, and the threads of `qwenvit encode`: clips that are
 * read side by side, each decoded by several threads, give the frames that each gives alone. It is
 * for the thread sanitizer, which sees only our own code (tsan.txt).
 */
#include "test.h"

#include <pthread.h>

#include "backends.h"
#include "command/tool.h"
#include "make_clips.h"
#include "read_clip.h"
#include "start_decoder.h"
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
    struct clip_read read[ROUNDS];
};

static void *
read_often(void *argument)
{
    struct worker *w = argument;
    const qv_clip_options options = { .num_frames = N_FRAMES,
                                      .threads = w->threads,
                                      .decoder = w->decoder };
    for (int round = 0; round < ROUNDS; round++)
        w->read[round] = read_clip(paths[w->clip], &options);
    return NULL;
}

static void
expect_same(const struct worker *w, const struct worker *alone)
{
    for (const struct clip_read *r = w->read; r < w->read + ROUNDS; r++)
        if (r->status || r->hash != alone->read[0].hash)
            fail_msg("%s with %d threads, %s: other frames than alone: %s", clips[w->clip],
                     w->threads, w->decoder ? "in a process" : "in threads", r->error.text);
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
            read_often(&alone[c]);
            expect_same(&alone[c], &alone[c]);
        }
    }
    for (int c = 0; c < N_CLIPS; c++)
        for (int i = 0; paths[c] && i < EACH; i++) {
            together[c][i] = (struct worker){ .clip = c,
                                              .threads = 2 + i % 2,
                                              .decoder = i < 2 ? NULL : decoder };
            assert_int_equal(pthread_create(&threads[c][i], NULL, read_often, &together[c][i]), 0);
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
        qv_clip *clip = open_clip(paths[N_CLIPS - 1], &options);
        usleep(i % 4 * 5000);
        test_end(clip);
    }
}

/* What is behind its header. */
static struct file
load_tensors(const char *name)
{
    struct file f = read_file(temp_path(name));
    uint64_t header;
    memcpy(&header, f.data, sizeof header);
    header += sizeof header;
    return (struct file){ f.data + header, f.bytes - header };
}

/* Decodes a clip, computes on the device and writes to the sink, all at once, for two clips. */
TEST(encode_two_clips)
{
    const char *arguments[] = { paths[N_CLIPS - 1], again };
    EACH_BACKEND (b)
        for (int threads = 0; threads < 2; threads++) {
            const struct tool_options o = {
                .backend = *b,
                .dtype = QV_F32,
                .threads = 1,
                .n_devices = 1,
                .to = { .quiet = true, .json = true, .json_file = temp_path("log.json") },
                .model = QV_GOLDEN "/qwen3_vl",
                .output = tempdir,
                .output_dtype = QV_F32,
                .chunk_rows = 16,
                .clip = { .num_frames = N_FRAMES,
                          .threads = 2,
                          .decoder = threads ? NULL : decoder },
                .arguments = arguments,
                .n_arguments = 2
            };
            assert_int_equal(tool_encode(&o), TOOL_DONE);
            const struct file one = load_tensors("whole.mkv.safetensors");
            const struct file two = load_tensors("again.mkv.safetensors");
            assert_true(one.bytes > 1000 && one.bytes == two.bytes);
            assert_memory_equal(one.data, two.data, one.bytes);
        }
}

static int
make_files(void)
{
    if (tempdir_make())
        return -1;
    decoder = start_with(QV_DECODER, "QV_FAULT", "");
    for (int c = 0; c < N_CLIPS; c++)
        if (clip_is_possible(clips[c])) {
            const clip_bytes bytes = clip_make(clips[c]);
            paths[c] = test_ends(strdup(temp_file(clips[c], bytes.data, bytes.n)), free);
            free(bytes.data);
        }
    again = test_ends(strdup(temp_path("again.mkv")), free);
    return link(paths[N_CLIPS - 1], again);
}

TEST_GROUP(make_files, tempdir_remove);
