/* SPDX-License-Identifier: MIT */
/* Tests what decodes a job's clips: the number of readers, which of them may read, and each case of
 * the choice between the CPU and a GPU. */

#include "test.h"

#include "more.h"
#include "who_decodes.h"

TEST(readers_are_counted)
{
    static const struct {
        int asked, cores, devices;
        qv_decode decode;
        bool gpu;
        struct qv_job_lanes lanes;
    } cases[] = {
        { 0, 8, 1, QV_DECODE_CPU, false, { .n = 8, .cpu = 8 } },
        { 3, 8, 1, QV_DECODE_AUTO, false, { .n = 3, .cpu = 3 } },
        { 0, 8, 1, QV_DECODE_AUTO, true, { 12, 8, 12, 12 } },
        { 0, 16, 1, QV_DECODE_AUTO, true, { 16, 16, 12, 12 } },
        { 0, 16, 1, QV_DECODE_GPU, true, { 12, 16, 12, 12 } },
        { 0, 40, 1, QV_DECODE_GPU, true, { 28, 40, 28, 12 } }, /* 24 cores serve the GPU's */
        { 0, 64, 2, QV_DECODE_AUTO, true, { 64, 64, 40, 24 } },
        { 5, 64, 2, QV_DECODE_GPU, true, { 5, 5, 5, 5 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct qv_job_lanes lanes =
            qv_job_lanes_of(cases[i].asked, cases[i].cores, cases[i].devices, cases[i].decode,
                            cases[i].gpu);
        if (memcmp(&lanes, &cases[i].lanes, sizeof lanes) != 0)
            fail_msg("case %zu: %d, %d, %d, %d", i, lanes.n, lanes.cpu, lanes.all, lanes.gpu);
    }
}

/* While a GPU decodes, a core's reader takes a source only when all of the GPU's are busy. */
TEST(a_core_reads_when_the_gpu_is_busy)
{
    const struct qv_job_lanes lanes = { .n = 20, .cpu = 8, .all = 20, .gpu = 12 };
    assert_true(qv_job_lane_may_read(&lanes, 7, false, 0));
    assert_false(qv_job_lane_may_read(&lanes, 8, false, 0));
    assert_true(qv_job_lane_may_read(&lanes, 11, true, 0));
    assert_false(qv_job_lane_may_read(&lanes, 12, true, 11));
    assert_true(qv_job_lane_may_read(&lanes, 12, true, 12));
    assert_false(qv_job_lane_may_read(&lanes, 20, true, 20));
}

TEST(few_clips_have_a_thread_per_core)
{
    assert_int_equal(qv_job_threads_of(8, 1), 0);
    assert_int_equal(qv_job_threads_of(8, 4), 0);
    assert_int_equal(qv_job_threads_of(8, 5), 1);
    assert_int_equal(qv_job_threads_of(1, 1), 0); /* a clip alone, whatever there is */
    assert_int_equal(qv_job_threads_of(1, 2), 1);
}

TEST(gpus_are_opened_for_many_clips)
{
    assert_true(qv_job_wants_gpus(12, "h264", 12));
    assert_true(qv_job_wants_gpus(12, "hevc", 100));
    assert_false(qv_job_wants_gpus(12, "hevc", 11));
    assert_false(qv_job_wants_gpus(12, "png", 100));
    assert_true(qv_job_wants_gpus(0, NULL, 48)); /* before a clip was opened */
    assert_false(qv_job_wants_gpus(0, NULL, 47));
}

static struct qv_job_choice
choose(qv_decode asked, unsigned cases)
{
    bool holds[QV_JOB_CASES];
    for (int i = 0; i < QV_JOB_CASES; i++)
        holds[i] = cases >> i & 1;
    return qv_job_who_decodes(asked, holds);
}

enum {
    CLIP_ASKS = 1 << QV_JOB_CLIP_ASKS,
    LOST = 1 << QV_JOB_GPU_LOST,
    CORE = 1 << QV_JOB_CORE_IS_FREE,
    NEVER = 1 << QV_JOB_GPU_NEVER,
    NOT_YET = 1 << QV_JOB_GPU_NOT_YET
};

TEST(each_case_has_its_choice)
{
    static const struct {
        qv_decode asked;
        unsigned holds;
        qv_decode by;
        const char *reason; /* NULL: the GPU's own */
    } cases[] = {
        { QV_DECODE_AUTO, 0, QV_DECODE_GPU, "" },
        { QV_DECODE_AUTO, NOT_YET, QV_DECODE_AUTO, "no GPU was open yet" },
        { QV_DECODE_AUTO, NEVER | NOT_YET, QV_DECODE_AUTO, NULL },
        { QV_DECODE_AUTO, CORE | NEVER | NOT_YET, QV_DECODE_AUTO, "a core was free first" },
        { QV_DECODE_AUTO, LOST | NEVER | NOT_YET, QV_DECODE_CPU, NULL },
        { QV_DECODE_AUTO, CLIP_ASKS | NOT_YET, QV_DECODE_AUTO, "" },
        { QV_DECODE_GPU, 0, QV_DECODE_GPU, "" },
        { QV_DECODE_GPU, NEVER | NOT_YET, QV_DECODE_GPU, "" }, /* it fails there, and says why */
        { QV_DECODE_GPU, LOST, QV_DECODE_GPU, "" },
        { QV_DECODE_GPU, CORE, QV_DECODE_CPU, "a core was free first" },
        { QV_DECODE_GPU, CLIP_ASKS | NOT_YET, QV_DECODE_GPU, "" },
        { QV_DECODE_CPU, 0, QV_DECODE_CPU, "" },
        { QV_DECODE_CPU, CORE, QV_DECODE_CPU, "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct qv_job_choice c = choose(cases[i].asked, cases[i].holds);
        const bool is_same = c.reason && cases[i].reason ? !strcmp(c.reason, cases[i].reason)
                                                         : c.reason == cases[i].reason;
        if (c.decode != cases[i].by || !is_same)
            fail_msg("case %zu: %d, \"%s\"", i, (int)c.decode, c.reason ? c.reason : "(its own)");
    }
}
