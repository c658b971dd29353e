/* SPDX-License-Identifier: MIT */
/* Tests a decoder program that was built without the headers of NVIDIA's decoders: whoever asks for
 * them hears so. */

#include "test.h"

#include "make_clips.h"
#include "qwenvit_clips.h"
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
    qv_decoder *decoder = NULL;
    assert_ok(qv_decoder_start(QV_DECODER_NO_NVDEC, &decoder, ERR));
    return decoder;
}

TEST(the_program_says_it_whole)
{
    qv_decoder *decoder = start();
    qv_error err = { 0 };
    assert_int_equal(qv_decoder_gpu(decoder, 0, true, &err), QV_EBACKEND);
    assert_string_equal(err.text, "GPU 0 decodes nothing: this build has no NVDEC support (no "
                                  "ffnvcodec headers)");
    qv_decoder_stop(&decoder);
}

TEST(its_version_says_it)
{
    char text[256];
    qv_error err = { 0 };
    assert_ok(qv_decoder_version(QV_DECODER_NO_NVDEC, text, ERR));
    assert_non_null(strstr(text, "\n  FFmpeg   "));
    assert_non_null(strstr(text, "\n  NVDEC    this build has no NVDEC support"));
    assert_int_equal(qv_decoder_version("/bin/true", text, &err), QV_EBACKEND);
    assert_non_null(strstr(err.text, "/bin/true does not run: exit code 0"));
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
    qv_error err = { 0 };
    qv_clip *clip = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const qv_clip_options options = { .decoder = decoder, .decode = cases[i].decode };
        qv_outcome info;
        assert_ok(qv_clip_open(cases[i].clip, NULL, NULL, &options, &clip, ERR));
        qv_clip_get_info(clip, &info);
        if (cases[i].not_gpu ? !strstr(info.not_gpu, words) : *info.not_gpu)
            fail_msg("case %zu: \"%s\"", i, info.not_gpu);
        assert_int_equal(info.decoded_by, QV_DECODE_CPU);
        qv_clip_close(&clip);
    }
    const qv_clip_options gpu = { .decoder = decoder, .decode = QV_DECODE_GPU };
    if (clip_is_possible("x264.mp4")) {
        clip_write("x264.mp4");
        assert_int_equal(qv_clip_open("x264.mp4", NULL, NULL, &gpu, &clip, &err), QV_EBACKEND);
        assert_non_null(strstr(err.text, words));
        remove("x264.mp4");
    }
    qv_decoder_stop(&decoder);
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
    qv_decoder_stop(&decoder);
}

static int
make_files(void)
{
    const int failed = clips_enter_folder();
    FILE *f = failed ? NULL : fopen("grey.ppm", "wb");
    if (!f)
        return -1;
    fprintf(f, "P6\n64 64\n255\n");
    for (int i = 0; i < 3 * 64 * 64; i++)
        fputc(i % 251, f);
    clip_write("whole.mkv");
    return fclose(f);
}

static int
remove_files(void)
{
    remove("grey.ppm");
    remove("whole.mkv");
    return clips_leave_folder();
}

TEST_GROUP(make_files, remove_files);
