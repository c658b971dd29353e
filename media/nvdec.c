/* SPDX-License-Identifier: MIT */
/* Decodes on NVIDIA's GPUs (nvdec.h). */
#define _GNU_SOURCE
#include "nvdec.h"

#include <stdlib.h>
#include <string.h>

#ifdef QV_WITH_NVDEC
#include <dlfcn.h>
#include <ffnvcodec/dynlink_cuda.h>
#include <ffnvcodec/dynlink_cuviddec.h>
#include <ffnvcodec/dynlink_nvcuvid.h>

enum {
    MOST_SURFACES = 32, /* of a decoder: what the parser numbers */
    EXTRA_SURFACES = 4, /* beside those that it asks for, so that it need not wait */
    DISPLAY_DELAY = 2,
    MOST_IDLE = 32, /* decoders that are kept open between clips */
};
#define MOST_BYTES ((int64_t)16 << 30) /* of the surfaces of all decoders */

/* Types that the headers lack. */
typedef CUresult CUDAAPI cuda_alloc(void **at, size_t bytes);
typedef CUresult CUDAAPI cuda_free(void *at);

/* The functions that are called in NVIDIA's libraries. */
struct calls {
#define CALLS                                                                                      \
    CALL(cuda, cuInit, tcuInit, "cuInit")                                                          \
    CALL(cuda, cuDeviceGet, tcuDeviceGet, "cuDeviceGet")                                           \
    CALL(cuda, cuCtxCreate, tcuCtxCreate_v2, "cuCtxCreate_v2")                                     \
    CALL(cuda, cuCtxPushCurrent, tcuCtxPushCurrent_v2, "cuCtxPushCurrent_v2")                      \
    CALL(cuda, cuCtxPopCurrent, tcuCtxPopCurrent_v2, "cuCtxPopCurrent_v2")                         \
    CALL(cuda, cuStreamCreate, tcuStreamCreate, "cuStreamCreate")                                  \
    CALL(cuda, cuStreamDestroy, tcuStreamDestroy_v2, "cuStreamDestroy_v2")                         \
    CALL(cuda, cuStreamSynchronize, tcuStreamSynchronize, "cuStreamSynchronize")                   \
    CALL(cuda, cuMemcpy2DAsync, tcuMemcpy2DAsync_v2, "cuMemcpy2DAsync_v2")                         \
    CALL(cuda, cuMemAllocHost, cuda_alloc, "cuMemAllocHost_v2")                                    \
    CALL(cuda, cuMemFreeHost, cuda_free, "cuMemFreeHost")                                          \
    CALL(cuda, cuGetErrorString, tcuGetErrorString, "cuGetErrorString")                            \
    CALL(cuvid, cuvidGetDecoderCaps, tcuvidGetDecoderCaps, "cuvidGetDecoderCaps")                  \
    CALL(cuvid, cuvidCreateDecoder, tcuvidCreateDecoder, "cuvidCreateDecoder")                     \
    CALL(cuvid, cuvidDestroyDecoder, tcuvidDestroyDecoder, "cuvidDestroyDecoder")                  \
    CALL(cuvid, cuvidDecodePicture, tcuvidDecodePicture, "cuvidDecodePicture")                     \
    CALL(cuvid, cuvidGetDecodeStatus, tcuvidGetDecodeStatus, "cuvidGetDecodeStatus")               \
    CALL(cuvid, cuvidMapVideoFrame, tcuvidMapVideoFrame64, "cuvidMapVideoFrame64")                 \
    CALL(cuvid, cuvidUnmapVideoFrame, tcuvidUnmapVideoFrame64, "cuvidUnmapVideoFrame64")           \
    CALL(cuvid, cuvidCreateVideoParser, tcuvidCreateVideoParser, "cuvidCreateVideoParser")         \
    CALL(cuvid, cuvidParseVideoData, tcuvidParseVideoData, "cuvidParseVideoData")                  \
    CALL(cuvid, cuvidDestroyVideoParser, tcuvidDestroyVideoParser, "cuvidDestroyVideoParser")
#define CALL(library, name, type, symbol) type *name;
    CALLS
#undef CALL
};

/* A decoder can be used again for streams of the shape that it was made for. */
struct shape {
    cudaVideoCodec codec;
    unsigned bit_depth;     /* above 8 */
    unsigned width, height; /* coded */
    unsigned surfaces;
};

struct decoder {
    CUvideodecoder handle; /* NULL: none */
    CUstream queue;
    void *
        host; /* a picture's planes in locked pages: copies to others take turns in the whole process */
    struct shape shape;
    int64_t bytes;
};

static const struct codec {
    enum AVCodecID id;
    cudaVideoCodec codec;
} codecs[] = { { AV_CODEC_ID_H264, cudaVideoCodec_H264 },
               { AV_CODEC_ID_HEVC, cudaVideoCodec_HEVC } };
enum { N_CODECS = sizeof codecs / sizeof *codecs };

struct qvm_nvdec {
    struct calls call;
    CUcontext context;
    CUVIDDECODECAPS caps[N_CODECS][2]; /* of 8 and of 10 bits */
    pthread_mutex_t lock;
    /* under the lock */
    struct decoder idle[MOST_IDLE]; /* [n_idle], the one that was used last at the end */
    int n_idle;
    int64_t bytes; /* of all decoders */
};

struct qvm_nvstream {
    qvm_nvdec *gpu;
    qvm_nvdec_sink sink;
    int codec;
    unsigned bit_depth;
    unsigned most_width, most_height;
    CUvideoparser parser;
    struct decoder decoder;
    CUVIDEOFORMAT format;
    bool has_format;
    int64_t pts, order; /* of the packet that is parsed; `order` of its period's first picture */
    int n_pictures;     /* of it, so far */
    struct waiting {
        int surface;
        uint8_t *to; /* NULL: it is not wanted */
        qvm_remote_event event;
    } waiting[QVM_GPU_DELAY]; /* [n_waiting], decoded but not told of */
    int n_waiting;
    int32_t order_of[MOST_SURFACES];
    uint32_t whole;   /* surfaces with a picture of this stream, */
    uint32_t unasked; /* and of these, those of which it is not known whether they are damaged */
    const char *why;  /* it is of no use any more */
};

/* ---- the device ------------------------------------------------------------------------------ */

static const char *
load(struct calls *call)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda)
        return "NVIDIA's driver (libcuda.so.1) is not here";
    void *cuvid = dlopen("libnvcuvid.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuvid)
        return "NVIDIA's video library (libnvcuvid.so.1) is not here; containers have it with the "
               "driver capability 'video'";
#define CALL(library, name, type, symbol)                                                          \
    *(void **)(void *)&call->name = dlsym(library, symbol);                                        \
    if (!call->name)                                                                               \
        return "NVIDIA's driver is too old: it has no " symbol;
    CALLS
#undef CALL
    return NULL;
}

static void
ask_for_caps(qvm_nvdec *g)
{
    for (int i = 0; i < N_CODECS; i++)
        for (unsigned deep = 0; deep < 2; deep++) {
            CUVIDDECODECAPS *c = &g->caps[i][deep];
            *c = (CUVIDDECODECAPS){ .eCodecType = codecs[i].codec,
                                    .eChromaFormat = cudaVideoChromaFormat_420,
                                    .nBitDepthMinus8 = 2 * deep };
            if (g->call.cuvidGetDecoderCaps(c))
                c->bIsSupported = 0;
        }
}

const char *
qvm_nvdec_load(qvm_nvdec **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? load(&(*out)->call) : "there is no memory";
}

/* ---- decoders -------------------------------------------------------------------------------- */

static int64_t
picture_bytes(const struct shape *s)
{
    return (int64_t)s->width * s->height * 3 / 2 * (s->bit_depth ? 2 : 1);
}

static int64_t
surface_bytes(const struct shape *s)
{
    return picture_bytes(s) * s->surfaces;
}

static void
free_parts(const qvm_nvdec *g, struct decoder *d)
{
    if (d->handle)
        g->call.cuvidDestroyDecoder(d->handle);
    if (d->host)
        g->call.cuMemFreeHost(d->host);
    if (d->queue)
        g->call.cuStreamDestroy(d->queue);
    *d = (struct decoder){ .handle = NULL };
}

/* Makes a decoder for what is no larger; false: it cannot. */
static bool
make_decoder(qvm_nvdec *g, const struct shape *s, struct decoder *d)
{
    CUVIDDECODECREATEINFO info = {
        .ulWidth = s->width,
        .ulHeight = s->height,
        .ulNumDecodeSurfaces = s->surfaces,
        .CodecType = s->codec,
        .ChromaFormat = cudaVideoChromaFormat_420,
        .ulCreationFlags = cudaVideoCreate_PreferCUVID,
        .bitDepthMinus8 = s->bit_depth,
        .ulMaxWidth = s->width,
        .ulMaxHeight = s->height,
        .OutputFormat = s->bit_depth ? cudaVideoSurfaceFormat_P016 : cudaVideoSurfaceFormat_NV12,
        .DeinterlaceMode = cudaVideoDeinterlaceMode_Weave,
        .ulTargetWidth = s->width,
        .ulTargetHeight = s->height,
        .ulNumOutputSurfaces = 1,
    };
    info.display_area.right = (short)s->width;
    info.display_area.bottom = (short)s->height;
    *d = (struct decoder){ .shape = *s, .bytes = surface_bytes(s) };
    if (!g->call.cuStreamCreate(&d->queue, 1 /* CU_STREAM_NON_BLOCKING */) &&
        !g->call.cuMemAllocHost(&d->host, (size_t)picture_bytes(s)) &&
        !g->call.cuvidCreateDecoder(&d->handle, &info))
        return true;
    d->handle = NULL;
    free_parts(g, d);
    return false;
}

static void
free_decoder(qvm_nvdec *g, struct decoder *d)
{
    const int64_t bytes = d->handle ? d->bytes : 0;
    free_parts(g, d);
    pthread_mutex_lock(&g->lock);
    g->bytes -= bytes;
    pthread_mutex_unlock(&g->lock);
}

static bool
is_same(const struct shape *a, const struct shape *b)
{
    return a->codec == b->codec && a->bit_depth == b->bit_depth && a->width == b->width &&
           a->height == b->height && a->surfaces == b->surfaces;
}

/* Under the lock: takes an idle decoder out of the list. */
static struct decoder
pick(qvm_nvdec *g, int i)
{
    const struct decoder d = g->idle[i];
    g->n_idle--;
    memmove(g->idle + i, g->idle + i + 1, (size_t)(g->n_idle - i) * sizeof *g->idle);
    return d;
}

/* Takes an idle decoder, or makes one, for which others are given up where they have too much memory. NULL, or why there is
 * none. */
static const char *
take_decoder(qvm_nvdec *g, const struct shape *s, struct decoder *d)
{
    struct decoder spare[MOST_IDLE];
    const int64_t bytes = surface_bytes(s);
    int n_spare = 0, i;
    pthread_mutex_lock(&g->lock);
    for (i = g->n_idle; i-- > 0 && !is_same(&g->idle[i].shape, s);)
        ;
    if (i >= 0)
        *d = pick(g, i);
    int64_t given = 0;
    while (i < 0 && g->n_idle && g->bytes + bytes - given > MOST_BYTES) {
        spare[n_spare] = pick(g, 0);
        given += spare[n_spare++].bytes;
    }
    const bool full = i < 0 && g->bytes + bytes - given > MOST_BYTES;
    g->bytes += i < 0 && !full ? bytes : 0;
    pthread_mutex_unlock(&g->lock);
    for (int k = 0; k < n_spare; k++)
        free_decoder(g, &spare[k]);
    if (i >= 0)
        return NULL;
    if (full)
        return "the GPU's decoders have no more memory";
    if (make_decoder(g, s, d))
        return NULL;
    pthread_mutex_lock(&g->lock);
    g->bytes -= bytes;
    pthread_mutex_unlock(&g->lock);
    return "the GPU makes no more decoders";
}

static void
give_back(qvm_nvdec *g, struct decoder *d)
{
    struct decoder oldest = { .handle = NULL };
    pthread_mutex_lock(&g->lock);
    if (g->n_idle == MOST_IDLE)
        oldest = pick(g, 0);
    g->idle[g->n_idle++] = *d;
    pthread_mutex_unlock(&g->lock);
    free_decoder(g, &oldest);
    d->handle = NULL;
}

const char *
qvm_nvdec_open(qvm_nvdec *g, int number)
{
    CUdevice device;
    CUcontext context;
    const char *text = NULL;
    CUresult code = g->call.cuInit(0);
    if (!code)
        code = g->call.cuDeviceGet(&device, number);
    if (!code)
        code = g->call.cuCtxCreate(&g->context, CU_CTX_SCHED_BLOCKING_SYNC, device);
    if (code) {
        g->call.cuGetErrorString(code, &text);
        return text ? text : "it cannot be opened";
    }
    pthread_mutex_init(&g->lock, NULL);
    ask_for_caps(g);
    g->call.cuCtxPopCurrent(&context);
    for (int i = 0; i < N_CODECS; i++)
        if (g->caps[i][0].bIsSupported)
            return NULL;
    return "it has no decoders of H.264 or HEVC";
}

bool
qvm_nvdec_try(qvm_nvdec *g)
{
    const struct shape usual = { codecs[0].codec, 0, 1280, 720, 9 };
    struct decoder d;
    CUcontext context;
    if (g->call.cuCtxPushCurrent(g->context))
        return false;
    const bool made = !take_decoder(g, &usual, &d);
    if (made)
        give_back(g, &d);
    g->call.cuCtxPopCurrent(&context);
    return made;
}

/* ---- what the parser says -------------------------------------------------------------------- */

static int
fail(qvm_nvstream *s, const char *why)
{
    if (!s->why)
        s->why = why;
    return 0;
}

/* The sizes and the format of the pictures that follow: of one stream always the same. Returns how many surfaces there
 * are, 0 where it fails. */
static int CUDAAPI
on_sequence(void *user, CUVIDEOFORMAT *f)
{
    qvm_nvstream *s = user;
    struct shape shape = { .codec = f->codec,
                           .bit_depth = f->bit_depth_luma_minus8,
                           .width = f->coded_width,
                           .height = f->coded_height,
                           .surfaces = f->min_num_decode_surfaces + EXTRA_SURFACES };
    if (s->has_format) {
        const bool same =
            f->coded_width == s->format.coded_width && f->coded_height == s->format.coded_height &&
            !memcmp(&f->display_area, &s->format.display_area, sizeof f->display_area) &&
            f->min_num_decode_surfaces <= s->format.min_num_decode_surfaces;
        return same ? (int)s->decoder.shape.surfaces : fail(s, "the size of its frames changes");
    }
    if (f->codec != codecs[s->codec].codec || f->chroma_format != cudaVideoChromaFormat_420 ||
        f->bit_depth_luma_minus8 != s->bit_depth || f->bit_depth_chroma_minus8 != s->bit_depth)
        return fail(s, "its headers say another format");
    if (!f->progressive_sequence)
        return fail(s, "it is interlaced");
    if (shape.surfaces > MOST_SURFACES || f->coded_width > s->most_width ||
        f->coded_height > s->most_height)
        return fail(s, "its frames are too large");
    s->why = take_decoder(s->gpu, &shape, &s->decoder);
    if (s->why)
        return 0;
    s->format = *f;
    s->has_format = true;
    return (int)shape.surfaces;
}

static bool
is_whole(const qvm_nvstream *s, int surface)
{
    return surface >= 0 && surface < MOST_SURFACES && (s->whole >> surface & 1);
}

static bool
has_h264_references(const qvm_nvstream *s, const CUVIDH264PICPARAMS *p)
{
    for (int i = 0; i < 16; i++) {
        const CUVIDH264DPBENTRY *e = &p->dpb[i];
        if (e->used_for_reference && (e->not_existing || !is_whole(s, e->PicIdx)))
            return false;
    }
    return true;
}

/* Of the pictures that a slice lists, only those that the picture itself refers to have to be there. */
static bool
has_hevc_references(const qvm_nvstream *s, const CUVIDHEVCPICPARAMS *p)
{
    const struct {
        int n;
        const unsigned char *at;
    } sets[] = { { p->NumPocStCurrBefore, p->RefPicSetStCurrBefore },
                 { p->NumPocStCurrAfter, p->RefPicSetStCurrAfter },
                 { p->NumPocLtCurr, p->RefPicSetLtCurr } };
    for (size_t k = 0; k < sizeof sets / sizeof *sets; k++)
        for (int i = 0; i < sets[k].n; i++) {
            const int at = i < 8 ? sets[k].at[i] : 16;
            const int surface = at < 16 ? p->RefPicIdx[at] : -1;
            if (!is_whole(s, surface) || s->order_of[surface] != p->PicOrderCntVal[at])
                return false;
        }
    return true;
}

/* Returns whether all pictures that a picture refers to are there, and of this stream. */
static bool
has_references(const qvm_nvstream *s, const CUVIDPICPARAMS *p)
{
    if (p->intra_pic_flag)
        return true;
    return codecs[s->codec].codec == cudaVideoCodec_H264
               ? has_h264_references(s, &p->CodecSpecific.h264)
               : has_hevc_references(s, &p->CodecSpecific.hevc);
}

static int32_t
order_of(const qvm_nvstream *s, const CUVIDPICPARAMS *p)
{
    const int *fields = p->CodecSpecific.h264.CurrFieldOrderCnt;
    if (codecs[s->codec].codec == cudaVideoCodec_HEVC)
        return p->CodecSpecific.hevc.CurrPicOrderCntVal;
    return fields[0] < fields[1] ? fields[0] : fields[1];
}

/* Asks of surfaces whether they were decoded without damage. */
static bool
ask(qvm_nvstream *s, uint32_t surfaces)
{
    for (int i = 0; i < MOST_SURFACES; i++) {
        CUVIDGETDECODESTATUS status = { .decodeStatus = cuvidDecodeStatus_Invalid };
        if (!(surfaces & s->unasked & 1U << i))
            continue;
        if (s->gpu->call.cuvidGetDecodeStatus(s->decoder.handle, i, &status))
            return fail(s, "the GPU does not say whether it is damaged");
        if (status.decodeStatus == cuvidDecodeStatus_Error ||
            status.decodeStatus == cuvidDecodeStatus_Error_Concealed)
            return fail(s, "it is damaged");
        if (status.decodeStatus == cuvidDecodeStatus_Success)
            s->unasked &= ~(1U << i);
    }
    return true;
}

/* Copies a surface, as qvm_remote_event tells. */
static bool
fetch(qvm_nvstream *s, int surface, uint8_t *to)
{
    const struct calls *call = &s->gpu->call;
    const CUVIDEOFORMAT *f = &s->format;
    unsigned long long from = 0;
    unsigned pitch = 0;
    CUVIDPROCPARAMS how = { .progressive_frame = 1, .output_stream = s->decoder.queue };
    if (call->cuvidMapVideoFrame(s->decoder.handle, surface, &from, &pitch, &how))
        return false;
    const size_t row = (size_t)f->coded_width << (s->bit_depth != 0);
    CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .srcPitch = pitch,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = s->decoder.host,
                           .dstPitch = row,
                           .WidthInBytes = row,
                           .Height = f->coded_height };
    CUresult code = call->cuMemcpy2DAsync(&copy, s->decoder.queue);
    copy.srcDevice += (size_t)pitch * f->coded_height;
    copy.dstHost = (uint8_t *)s->decoder.host + row * f->coded_height;
    copy.Height /= 2;
    if (!code)
        code = call->cuMemcpy2DAsync(&copy, s->decoder.queue);
    if (call->cuStreamSynchronize(s->decoder.queue))
        code = CUDA_ERROR_UNKNOWN;
    call->cuvidUnmapVideoFrame(s->decoder.handle, from);
    if (!code)
        memcpy(to, s->decoder.host, (size_t)picture_bytes(&s->decoder.shape));
    return !code;
}

/* Tells of the picture that waits for longest. */
static bool
hand_out(qvm_nvstream *s)
{
    const struct waiting w = s->waiting[0];
    s->n_waiting--;
    memmove(s->waiting, s->waiting + 1, (size_t)s->n_waiting * sizeof *s->waiting);
    if (w.to && !fetch(s, w.surface, w.to))
        return fail(s, "the GPU's frames cannot be copied");
    /* it is there, and so is all that it refers to, which was decoded before */
    if (w.to && !ask(s, ~0U))
        return false;
    s->sink.frame(s->sink.user, &w.event);
    return true;
}

static bool
is_waiting(const qvm_nvstream *s, int surface)
{
    for (int i = 0; i < s->n_waiting; i++)
        if (s->waiting[i].surface == surface)
            return true;
    return false;
}

static void
let_wait(qvm_nvstream *s, int surface)
{
    const CUVIDEOFORMAT *f = &s->format;
    struct waiting *w = &s->waiting[s->n_waiting++];
    *w = (struct waiting){ .surface = surface,
                           .event = { .kind = QVM_REMOTE_FRAME,
                                      .slot = -1,
                                      .pts = s->pts,
                                      .order = s->order + s->order_of[surface],
                                      .width = (int32_t)f->coded_width,
                                      .height = (int32_t)f->coded_height,
                                      .right = (int32_t)f->coded_width - f->display_area.right,
                                      .bottom =
                                          (int32_t)f->coded_height - f->display_area.bottom } };
    const int64_t bytes = (int64_t)f->coded_width * f->coded_height * 3 / 2 << (s->bit_depth != 0);
    w->to = s->sink.find(s->sink.user, s->pts, bytes, &w->event.slot);
}

/* The picture of the packet that is parsed, whose time it has. When it is shown by the parser is of no importance: the
 * parser may have another idea of that where packets were left out. */
static int CUDAAPI
on_picture(void *user, CUVIDPICPARAMS *p)
{
    qvm_nvstream *s = user;
    const int surface = p->CurrPicIdx;
    if (s->why || !s->has_format || surface < 0 || surface >= MOST_SURFACES)
        return fail(s, "its pictures cannot be decoded");
    if (p->field_pic_flag)
        return fail(s, "it is interlaced");
    if (s->n_pictures++)
        return fail(s, "a packet has several pictures");
    if (!has_references(s, p))
        return fail(s, "pictures that it refers to are missing");
    while (s->n_waiting == QVM_GPU_DELAY || is_waiting(s, surface))
        if (!hand_out(s))
            return 0;
    if (!ask(s, 1U << surface))
        return 0;
    if (s->gpu->call.cuvidDecodePicture(s->decoder.handle, p))
        return fail(s, "the GPU fails to decode it");
    s->whole |= 1U << surface;
    s->unasked |= 1U << surface;
    s->order_of[surface] = order_of(s, p);
    let_wait(s, surface);
    return 1;
}

static int CUDAAPI
on_display(void *user, CUVIDPARSERDISPINFO *d)
{
    (void)user;
    (void)d;
    return 1;
}

/* ---- streams --------------------------------------------------------------------------------- */

static bool
make_parser(qvm_nvstream *s)
{
    CUVIDPARSERPARAMS p = { .CodecType = codecs[s->codec].codec,
                            .ulMaxNumDecodeSurfaces = 1,
                            .ulMaxDisplayDelay = DISPLAY_DELAY,
                            .pUserData = s,
                            .pfnSequenceCallback = on_sequence,
                            .pfnDecodePicture = on_picture,
                            .pfnDisplayPicture = on_display };
    s->whole = s->unasked = 0;
    return !s->gpu->call.cuvidCreateVideoParser(&s->parser, &p);
}

qvm_nvstream *
qvm_nvstream_open(qvm_nvdec *g, const qvm_remote_stream *about, const qvm_nvdec_sink *sink,
                  const char **why)
{
    int codec = 0;
    while (codec < N_CODECS && (int)codecs[codec].id != about->codec_id)
        codec++;
    const unsigned deep = about->format == AV_PIX_FMT_YUV420P10;
    const CUVIDDECODECAPS *c = codec < N_CODECS ? &g->caps[codec][deep] : NULL;
    *why = !c || !c->bIsSupported ? "the GPU does not decode its kind"
           : about->width < c->nMinWidth || about->height < c->nMinHeight
               ? "its frames are smaller than the GPU decodes"
           : about->width > (int)c->nMaxWidth || about->height > (int)c->nMaxHeight
               ? "its frames are larger than the GPU decodes"
               : NULL;
    qvm_nvstream *s = *why ? NULL : calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (qvm_nvstream){ .gpu = g,
                         .sink = *sink,
                         .codec = codec,
                         .bit_depth = 2 * deep,
                         .most_width = c->nMaxWidth,
                         .most_height = c->nMaxHeight };
    if (g->call.cuCtxPushCurrent(g->context) || !make_parser(s)) {
        *why = "the GPU opens no more streams";
        free(s);
        return NULL;
    }
    return s;
}

const char *
qvm_nvstream_give(qvm_nvstream *s, const uint8_t *data, size_t n, int64_t pts, int32_t period)
{
    CUVIDSOURCEDATAPACKET packet = { .flags = data ? CUVID_PKT_TIMESTAMP | CUVID_PKT_ENDOFPICTURE
                                                   : CUVID_PKT_ENDOFSTREAM,
                                     .payload = data,
                                     .payload_size = n,
                                     .timestamp = pts };
    s->pts = pts;
    s->order = ((int64_t)period << 32);
    s->n_pictures = data ? 0 : 1; /* at the end none is left */
    if (!s->why && s->gpu->call.cuvidParseVideoData(s->parser, &packet))
        fail(s, "its packets cannot be parsed");
    if (!s->why && !s->n_pictures)
        fail(s, "a packet has no picture");
    while (!data && !s->why && s->n_waiting)
        hand_out(s);
    if (!data && !s->why)
        ask(s, ~0U);
    return s->why;
}

const char *
qvm_nvstream_begin_anew(qvm_nvstream *s)
{
    s->gpu->call.cuvidDestroyVideoParser(s->parser);
    s->parser = NULL;
    return make_parser(s) ? s->why : "the GPU opens no more streams";
}

void
qvm_nvstream_close(qvm_nvstream *s)
{
    CUcontext context;
    if (s->parser)
        s->gpu->call.cuvidDestroyVideoParser(s->parser);
    if (s->decoder.handle)
        give_back(s->gpu, &s->decoder);
    s->gpu->call.cuCtxPopCurrent(&context);
    free(s);
}

#else

static const char none[] = "this build has no decoders of GPUs: the headers ffnvcodec were missing";

const char *
qvm_nvdec_load(qvm_nvdec **out)
{
    *out = NULL;
    return none;
}

const char *
qvm_nvdec_open(qvm_nvdec *gpu, int number)
{
    (void)gpu;
    (void)number;
    return none;
}

bool
qvm_nvdec_try(qvm_nvdec *gpu)
{
    (void)gpu;
    return false;
}

qvm_nvstream *
qvm_nvstream_open(qvm_nvdec *gpu, const qvm_remote_stream *about, const qvm_nvdec_sink *sink,
                  const char **why)
{
    (void)gpu;
    (void)about;
    (void)sink;
    *why = none;
    return NULL;
}

const char *
qvm_nvstream_give(qvm_nvstream *stream, const uint8_t *data, size_t n, int64_t pts, int32_t period)
{
    (void)stream;
    (void)data;
    (void)n;
    (void)pts;
    (void)period;
    return none;
}

const char *
qvm_nvstream_begin_anew(qvm_nvstream *stream)
{
    (void)stream;
    return none;
}

void
qvm_nvstream_close(qvm_nvstream *stream)
{
    (void)stream;
}

#endif
