/* SPDX-License-Identifier: MIT */
/* Tests a decoder program that was built without the headers of NVIDIA's decoders: a request for
 * them fails with that reason. */
#include "test.h"

#include "clips/decoders.h"
#include "make_clips.h"
#include "read_clip.h"
#include "start_decoder.h"
#include "tempdir.h"
#include "tiny.h"
#include "wrap.h"

static const char words[] = "this build has no NVDEC support";
static bool is_cuda; /* what contexts say that they are */

WRAPPED(void, qv_context_get_info, (const qv_context *context, qv_context_info *info))
{
    __real_qv_context_get_info(context, info);
    if (is_cuda)
        info->backend = "cuda";
}

static qv_decoder *
start(void)
{
    return start_with(QV_DECODER_NO_NVDEC, "QV_FAULT", "");
}

TEST(the_program_says_it_whole)
{
    qv_decoder *decoder = start();
    expect_error(QV_EBACKEND,
                 "GPU 0 cannot decode: this build has no NVDEC support (no ffnvcodec headers)",
                 qv_decoder_gpu(decoder, 0, true, ERR));
}

TEST(its_version_says_it)
{
    char text[256];
    assert_ok(qv_decoder_version(QV_DECODER_NO_NVDEC, text, ERR));
    assert_non_null(strstr(text, "\n  FFmpeg   "));
    assert_non_null(strstr(text, "\n  NVDEC    this build has no NVDEC support"));
    expect_error(QV_EBACKEND, "/bin/true does not run: exit code 0",
                 qv_decoder_version("/bin/true", text, ERR));
}

/* auto is the CPU, and says why; cpu needs no reason, and images have none; gpu fails. */
TEST(clips_say_it)
{
    static const struct {
        const char *clip;
        qv_decode decode;
        const char *not_gpu;
    } cases[] = {
        { "whole.mkv", QV_DECODE_AUTO, words },
        { "whole.mkv", QV_DECODE_CPU, NULL },
        { "grey.ppm", QV_DECODE_AUTO, NULL },
    };
    qv_decoder *decoder = start();
    EACH (c, cases) {
        const qv_clip_options options = { .decoder = decoder, .decode = c->decode };
        const qv_outcome info = clip_info(open_clip(c->clip, &options));
        if (c->not_gpu ? !strstr(info.not_gpu, words) : *info.not_gpu)
            fail_msg("case %d: \"%s\"", (int)(c - cases), info.not_gpu);
        assert_int_equal(info.decoded_by, QV_DECODE_CPU);
    }
    const qv_clip_options gpu = { .decoder = decoder, .decode = QV_DECODE_GPU };
    if (clip_is_possible("x264.mp4")) {
        clip_write("x264.mp4");
        const struct clip_read r = read_clip("x264.mp4", &gpu);
        expect_failure("gpu", QV_EBACKEND, words, r.status, &r.error);
    }
}

static qv_status
keep_reason(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    memcpy(user, r->outcome.not_gpu, sizeof r->outcome.not_gpu);
    return QV_OK;
}

/* A job whose tokens a CUDA device computes, before it has asked for that device's decoders. */
TEST(a_job_says_it)
{
    struct tiny t = tiny_open("ref", QV_F32, 0);
    char reason[64] = "";
    qv_decoder *decoder = start();
    qv_job *job = NULL;
    const qv_job_options options = { .sink = { .end = keep_reason, .user = reason },
                                     .clip = { .decoder = decoder, .decode = QV_DECODE_AUTO } };
    is_cuda = true;
    assert_ok(qv_job_open(&t.model, 1, &options, &job, ERR) ||
              qv_job_add(job, &(qv_job_source){ .path = "whole.mkv", .key = "k" }, ERR) ||
              qv_job_end(job, ERR));
    is_cuda = false;
    assert_non_null(strstr(reason, words));
    qv_job_close(&job);
}

static int
make_files(void)
{
    static uint8_t grey[13 + 3 * 64 * 64] = "P6\n64 64\n255\n";
    if (clips_enter_folder())
        return -1;
    clip_write_bytes("grey.ppm", (clip_bytes){ grey, sizeof grey });
    clip_write("whole.mkv");
    return 0;
}

TEST_GROUP(make_files, clips_leave_folder);
