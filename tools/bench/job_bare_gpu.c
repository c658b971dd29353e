/* SPDX-License-Identifier: MIT */
/*
 * A stream of the bare loop on a GPU: NVIDIA's parser calls back, each picture is decoded, and the
 * planes of those that are wanted come to the host some pictures later. Nothing is checked. Of our
 * own code it uses only what opens NVIDIA's library and keeps decoders open between clips.
 */
#include "job_bare_gpu.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

#ifdef QV_WITH_NVDEC
#include <dlfcn.h>

#include "media/nvcuvid.h"

enum { AHEAD = 4, EXTRA_SURFACES = 4 };

struct job_bare_stream {
    qvm_nvdec *gpu;
    struct job_bare_sink sink;
    CUvideoparser parser;
    struct qvm_nvdecoder decoder;
    int64_t pts; /* of the packet that is parsed */
    struct {
        int surface;
        int64_t pts;
    } waiting[AHEAD]; /* [n_waiting] wanted pictures that are being decoded */
    int n_waiting;
    AVFrame *frame; /* its chroma lies in `chroma`, the rest in the decoder's memory of the host */
    uint8_t *chroma;
    qv_status status;
    qv_error error;
};

static int
fail(job_bare_stream *s, const char *what)
{
    if (!s->status)
        s->status = qv_fail(&s->error, QV_EBACKEND, "a bare loop on the GPU: %s", what);
    return 0;
}

static int CUDAAPI
on_sequence(void *user, CUVIDEOFORMAT *f)
{
    job_bare_stream *s = user;
    const struct qvm_nvshape shape = { .codec = f->codec,
                                       .width = f->coded_width,
                                       .height = f->coded_height,
                                       .surfaces = f->min_num_decode_surfaces + EXTRA_SURFACES };
    if (s->decoder.handle)
        return (int)s->decoder.shape.surfaces;
    if (f->bit_depth_luma_minus8)
        return fail(s, "it has more than 8 bits");
    const char *why = qvm_nvdecoder_take(s->gpu, &shape, &s->decoder);
    const size_t pixels = (size_t)f->coded_width * f->coded_height;
    s->chroma = malloc(pixels / 2);
    if (why || !s->chroma)
        return fail(s, why ? why : "there is no memory");
    s->frame->format = AV_PIX_FMT_YUV420P;
    s->frame->width = f->display_area.right;
    s->frame->height = f->display_area.bottom;
    s->frame->linesize[0] = (int)f->coded_width;
    s->frame->linesize[1] = s->frame->linesize[2] = (int)f->coded_width / 2;
    s->frame->data[0] = s->decoder.host;
    s->frame->data[1] = s->chroma;
    s->frame->data[2] = s->chroma + pixels / 4;
    return (int)shape.surfaces;
}

/* Copies a surface to the host, and waits for it. */
static bool
fetch(job_bare_stream *s, int surface)
{
    const struct qvm_nvcalls *call = &s->gpu->call;
    const struct qvm_nvshape *shape = &s->decoder.shape;
    unsigned long long from = 0;
    unsigned pitch = 0;
    CUVIDPROCPARAMS how = { .progressive_frame = 1, .output_stream = s->decoder.queue };
    if (call->cuvidMapVideoFrame(s->decoder.handle, surface, &from, &pitch, &how))
        return false;
    const CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                 .srcDevice = from, /* chroma follows luma */
                                 .srcPitch = pitch,
                                 .dstMemoryType = CU_MEMORYTYPE_HOST,
                                 .dstHost = s->decoder.host,
                                 .dstPitch = shape->width,
                                 .WidthInBytes = shape->width,
                                 .Height = shape->height * 3 / 2 };
    const bool copied = !call->cuMemcpy2DAsync(&copy, s->decoder.queue) &&
                        !call->cuStreamSynchronize(s->decoder.queue);
    call->cuvidUnmapVideoFrame(s->decoder.handle, from);
    return copied;
}

static bool
hand_out(job_bare_stream *s)
{
    const int surface = s->waiting[0].surface;
    const size_t pixels = (size_t)s->decoder.shape.width * s->decoder.shape.height;
    const uint8_t *pairs = (const uint8_t *)s->decoder.host + pixels;
    s->frame->pts = s->waiting[0].pts;
    memmove(s->waiting, s->waiting + 1, (size_t)--s->n_waiting * sizeof *s->waiting);
    if (!fetch(s, surface))
        return fail(s, "a frame cannot be copied");
    for (size_t i = 0; i < pixels / 4; i++) {
        s->frame->data[1][i] = pairs[2 * i];
        s->frame->data[2][i] = pairs[2 * i + 1];
    }
    s->status = s->sink.take(s->sink.user, s->frame, &s->error);
    return !s->status;
}

static int CUDAAPI
on_picture(void *user, CUVIDPICPARAMS *p)
{
    job_bare_stream *s = user;
    bool reused = false;
    for (int i = 0; i < s->n_waiting; i++)
        reused = reused || s->waiting[i].surface == p->CurrPicIdx;
    for (; s->n_waiting && (reused || s->n_waiting == AHEAD);)
        if (!hand_out(s))
            return 0;
    if (s->gpu->call.cuvidDecodePicture(s->decoder.handle, p))
        return fail(s, "a picture cannot be decoded");
    if (s->sink.wants(s->sink.user, s->pts)) {
        s->waiting[s->n_waiting].surface = p->CurrPicIdx;
        s->waiting[s->n_waiting++].pts = s->pts;
    }
    return 1;
}

/* Takes the context of the CUDA runtime, which the tower has in this process, because two contexts
 * would share the GPU by turns. */
static const char *
share_context(qvm_nvdec *gpu, int number)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *at = NULL;
    if (cuda)
        at = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    tcuDevicePrimaryCtxRetain *retain;
    memcpy(&retain, &at, sizeof retain);
    CUdevice device;
    return !at || gpu->call.cuDeviceGet(&device, number) || retain(&gpu->context, device)
               ? "the context of the tower is not found"
               : NULL;
}

qv_status
job_bare_gpu_open(struct job_bench *j, qv_error *err)
{
    const char *why = qvm_nvdec_load(&j->bare_gpu);
    if (!why)
        why = qvm_nvdec_open(j->bare_gpu, j->o.clip.gpu);
    if (!why)
        why = share_context(j->bare_gpu, j->o.clip.gpu);
    return why ? qv_fail(err, QV_EBACKEND, "a bare loop on GPU %d: %s", j->o.clip.gpu, why) : QV_OK;
}

qv_status
job_bare_stream_open(const struct job_bench *j, const AVCodecParameters *par,
                     const struct job_bare_sink *sink, job_bare_stream **out, qv_error *err)
{
    const int codec = qvm_nvcodec_find((int)par->codec_id);
    if (codec == QVM_NVCODECS)
        return qv_fail(err, QV_EUNSUPPORTED, "a bare loop on the GPU takes H.264 and HEVC");
    job_bare_stream *s = calloc(1, sizeof *s);
    *out = s;
    if (!s || !(s->frame = av_frame_alloc()))
        return qv_fail(err, QV_ENOMEM, "no memory for a stream");
    s->gpu = j->bare_gpu;
    s->sink = *sink;
    s->frame->color_range = par->color_range;
    s->frame->colorspace = par->color_space;
    const CUVIDPARSERPARAMS p = { .CodecType = qvm_nvcodecs[codec].codec,
                                  .ulMaxDisplayDelay = AHEAD,
                                  .pUserData = s,
                                  .pfnSequenceCallback = on_sequence,
                                  .pfnDecodePicture = on_picture };
    if (s->gpu->call.cuCtxPushCurrent(s->gpu->context) || !qvm_nvparser_make(s->gpu, p, &s->parser))
        return qv_fail(err, QV_EBACKEND, "a bare loop on the GPU opens no stream");
    return QV_OK;
}

qv_status
job_bare_stream_give(job_bare_stream *s, const AVPacket *packet, qv_error *err)
{
    CUVIDSOURCEDATAPACKET p = { .flags = CUVID_PKT_ENDOFSTREAM };
    if (packet)
        p = (CUVIDSOURCEDATAPACKET){ .flags = CUVID_PKT_TIMESTAMP | CUVID_PKT_ENDOFPICTURE,
                                     .payload = packet->data,
                                     .payload_size = (unsigned long)packet->size,
                                     .timestamp = packet->pts };
    s->pts = packet ? packet->pts : 0;
    if (!s->status && s->gpu->call.cuvidParseVideoData(s->parser, &p))
        fail(s, "a packet cannot be parsed");
    while (!packet && !s->status && s->n_waiting)
        hand_out(s);
    if (s->status)
        *err = s->error;
    return s->status;
}

void
job_bare_stream_close(job_bare_stream **stream)
{
    job_bare_stream *s = *stream;
    CUcontext context;
    if (!s)
        return;
    if (s->parser)
        s->gpu->call.cuvidDestroyVideoParser(s->parser);
    if (s->decoder.handle)
        qvm_nvdecoder_give_back(s->gpu, &s->decoder);
    if (s->gpu)
        s->gpu->call.cuCtxPopCurrent(&context);
    av_frame_free(&s->frame);
    free(s->chroma);
    free(s);
    *stream = NULL;
}

#else

qv_status
job_bare_gpu_open(struct job_bench *j, qv_error *err)
{
    (void)j;
    return qv_fail(err, QV_EBACKEND, "a bare loop on a GPU: this build has no NVDEC support");
}

qv_status
job_bare_stream_open(const struct job_bench *j, const AVCodecParameters *par,
                     const struct job_bare_sink *sink, job_bare_stream **out, qv_error *err)
{
    (void)par;
    (void)sink;
    (void)out;
    return job_bare_gpu_open((struct job_bench *)(uintptr_t)j, err);
}

qv_status
job_bare_stream_give(job_bare_stream *s, const AVPacket *packet, qv_error *err)
{
    (void)s;
    (void)packet;
    return qv_fail(err, QV_EBACKEND, "no stream is open");
}

void
job_bare_stream_close(job_bare_stream **s)
{
    (void)s;
}

#endif
