/* SPDX-License-Identifier: MIT */
/* A stream decoded by an NVIDIA GPU (nvdec.h): NVIDIA's parser reads it and calls back. */
#include "nvcuvid.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_SURFACES = 32, /* of a decoder; the parser numbers them */
    EXTRA_SURFACES = 4, /* more than the parser requests, so that it need not wait */
    DISPLAY_DELAY = 2,
};

struct qvm_nvstream {
    qvm_nvdec *gpu;
    qvm_nvdec_sink sink;
    qvm_scaled scaled; /* as requested; zeros: frames are planes */
    qvm_colours colours;
    int codec;
    unsigned bit_depth;
    unsigned most_width, most_height;
    CUvideoparser parser;
    struct qvm_nvdecoder decoder;
    CUVIDEOFORMAT format;
    bool has_format;
    /* of the packet being parsed: its time, and the order of its period's first picture */
    int64_t pts, order;
    int32_t group;  /* the packet's group of pictures */
    int n_pictures; /* pictures of that packet so far */
    struct waiting {
        int surface;
        uint8_t *to; /* where the frame is wanted; NULL: nowhere */
        qvm_gpu_decoder_event event;
    } waiting[QVM_GPU_DELAY]; /* [n_waiting] decoded pictures not yet passed to the sink */
    int n_waiting;
    int32_t order_of[MOST_SURFACES];
    int32_t group_of[MOST_SURFACES];
    uint32_t whole;   /* surfaces that hold a picture of this stream */
    uint32_t unasked; /* surfaces whose picture the GPU has not yet reported as whole or damaged */
    const char *why;  /* why the stream has failed, or NULL */
};

/* ---- what the parser says -------------------------------------------------------------------- */

static int
fail(qvm_nvstream *s, const char *why)
{
    if (!s->why)
        s->why = why;
    return 0;
}

/* Returns the columns or rows (`down`) cropped before the visible part, which NVIDIA's parser does
 * not report. */
static int
cut_off(const qvm_nvstream *s, bool down)
{
    const CUVIDEOFORMAT *f = &s->format;
    return down ? f->display_area.bottom - s->scaled.height
                : f->display_area.right - s->scaled.width;
}

/* Returns whether frames can be resized as requested. The request comes from the clip's process,
 * which is not trusted. */
static bool
can_scale(const qvm_nvstream *s)
{
    const qvm_scaled *z = &s->scaled;
    const CUVIDEOFORMAT *f = &s->format;
    return !s->bit_depth && z->to_width > 0 && z->to_height > 0 && z->width > 0 && z->height > 0 &&
           z->width % 2 == 0 && z->height % 2 == 0 && z->width <= f->display_area.right &&
           z->height <= f->display_area.bottom && z->to_width <= z->width + QVM_SCALED_MORE &&
           z->to_height <= z->height + QVM_SCALED_MORE &&
           f->display_area.right <= (int)f->coded_width &&
           f->display_area.bottom <= (int)f->coded_height && cut_off(s, false) % 2 == 0 &&
           cut_off(s, true) % 2 == 0;
}

/* Called with the sizes and format of the following pictures, which must never change. Returns the
 * number of surfaces, or 0 on failure. */
static int CUDAAPI
on_sequence(void *user, CUVIDEOFORMAT *f)
{
    qvm_nvstream *s = user;
    struct qvm_nvshape shape = { .codec = f->codec,
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
    if (f->codec != qvm_nvcodecs[s->codec].codec || f->chroma_format != cudaVideoChromaFormat_420 ||
        f->bit_depth_luma_minus8 != s->bit_depth || f->bit_depth_chroma_minus8 != s->bit_depth)
        return fail(s, "its headers give a different format");
    if (!f->progressive_sequence)
        return fail(s, "it is interlaced");
    if (shape.surfaces > MOST_SURFACES || f->coded_width > s->most_width ||
        f->coded_height > s->most_height)
        return fail(s, "its frames are too large");
    s->why = qvm_nvdecoder_take(s->gpu, &shape, &s->decoder);
    if (s->why)
        return 0;
    s->format = *f;
    s->has_format = true;
    if (!can_scale(s) || !qvm_nvscaler_make(s->gpu, &s->scaled, &s->decoder.scaler))
        s->scaled = (qvm_scaled){ 0 };
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

/* Returns whether the pictures that it refers to exist. Other pictures listed by its slices may be
 * missing. */
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

/* Returns whether all pictures that a picture refers to exist and belong to this stream. */
static bool
has_references(const qvm_nvstream *s, const CUVIDPICPARAMS *p)
{
    if (p->intra_pic_flag)
        return true;
    return qvm_nvcodecs[s->codec].codec == cudaVideoCodec_H264
               ? has_h264_references(s, &p->CodecSpecific.h264)
               : has_hevc_references(s, &p->CodecSpecific.hevc);
}

/* FFmpeg 5.1 decodes some HEVC with 16x16 coding tree blocks to colours that differ from the
 * encoder's (the MD5 of Cr differs), and an H200's colours differed from FFmpeg's: these streams
 * are left to the CPU. */
static bool
has_small_blocks(const qvm_nvstream *s, const CUVIDPICPARAMS *p)
{
    const CUVIDHEVCPICPARAMS *h = &p->CodecSpecific.hevc;
    return qvm_nvcodecs[s->codec].codec == cudaVideoCodec_HEVC &&
           h->log2_min_luma_coding_block_size_minus3 + h->log2_diff_max_min_luma_coding_block_size <
               2;
}

static int32_t
order_of(const qvm_nvstream *s, const CUVIDPICPARAMS *p)
{
    const int *fields = p->CodecSpecific.h264.CurrFieldOrderCnt;
    if (qvm_nvcodecs[s->codec].codec == cudaVideoCodec_HEVC)
        return p->CodecSpecific.hevc.CurrPicOrderCntVal;
    return fields[0] < fields[1] ? fields[0] : fields[1];
}

/* Asks the GPU whether pictures in these surfaces are damaged, and fails the stream if one is. */
static bool
ask(qvm_nvstream *s, uint32_t surfaces)
{
    for (int i = 0; i < MOST_SURFACES; i++) {
        CUVIDGETDECODESTATUS status = { .decodeStatus = cuvidDecodeStatus_Invalid };
        if (!(surfaces & s->unasked & 1U << i))
            continue;
        if (s->gpu->call.cuvidGetDecodeStatus(s->decoder.handle, i, &status))
            return fail(s, "the GPU does not report whether it is damaged");
        if (status.decodeStatus == cuvidDecodeStatus_Error ||
            status.decodeStatus == cuvidDecodeStatus_Error_Concealed)
            return fail(s, "it is damaged");
        if (status.decodeStatus == cuvidDecodeStatus_Success)
            s->unasked &= ~(1U << i);
    }
    return true;
}

static int64_t
frame_bytes(const qvm_nvstream *s)
{
    return s->scaled.width ? qvm_scaled_bytes(&s->scaled) : qvm_nvdecoder_bytes(&s->decoder.shape);
}

/* Enqueues the copy of a mapped surface to the host. */
static CUresult
copy_out(qvm_nvstream *s, CUdeviceptr luma, unsigned pitch)
{
    const struct qvm_nvcalls *call = &s->gpu->call;
    const CUVIDEOFORMAT *f = &s->format;
    const struct qvm_nvdecoder *d = &s->decoder;
    const CUdeviceptr chroma = luma + (size_t)pitch * f->coded_height;
    if (s->scaled.width) {
        const size_t left = (size_t)cut_off(s, false), top = (size_t)cut_off(s, true);
        return qvm_nvscaler_run(s->gpu, d->scaler, luma + top * pitch + left,
                                chroma + top / 2 * pitch + left, pitch, &s->colours, d->queue,
                                d->host);
    }
    const size_t row = (size_t)f->coded_width << (s->bit_depth != 0);
    CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = luma,
                           .srcPitch = pitch,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = d->host,
                           .dstPitch = row,
                           .WidthInBytes = row,
                           .Height = f->coded_height };
    const CUresult code = call->cuMemcpy2DAsync(&copy, d->queue);
    copy.srcDevice = chroma;
    copy.dstHost = (uint8_t *)d->host + row * f->coded_height;
    copy.Height /= 2;
    return code ? code : call->cuMemcpy2DAsync(&copy, d->queue);
}

/* Waits for the picture in a surface, and copies it if wanted (qvm_gpu_decoder_event). */
static bool
fetch(qvm_nvstream *s, int surface, uint8_t *to)
{
    const struct qvm_nvcalls *call = &s->gpu->call;
    unsigned long long from = 0;
    unsigned pitch = 0;
    CUVIDPROCPARAMS how = { .progressive_frame = 1, .output_stream = s->decoder.queue };
    if (call->cuvidMapVideoFrame(s->decoder.handle, surface, &from, &pitch, &how))
        return false;
    CUresult code = to ? copy_out(s, from, pitch) : CUDA_SUCCESS;
    if (call->cuStreamSynchronize(s->decoder.queue))
        code = CUDA_ERROR_UNKNOWN;
    call->cuvidUnmapVideoFrame(s->decoder.handle, from);
    if (to && !code)
        memcpy(to, s->decoder.host, (size_t)frame_bytes(s));
    return !code;
}

/* Waits for the pictures in these surfaces whose damage is not known yet, and asks the GPU again.
 * Fails the stream if one is damaged, or if the GPU still does not know. */
static bool
settle(qvm_nvstream *s, uint32_t surfaces)
{
    bool done = ask(s, surfaces);
    for (int i = 0; i < MOST_SURFACES && done; i++)
        if ((surfaces & s->unasked & 1U << i) && !fetch(s, i, NULL))
            done = fail(s, "the GPU's frames cannot be copied");
    if (!done || !ask(s, surfaces))
        return false;
    return s->unasked & surfaces ? fail(s, "the GPU does not report whether it is damaged") : true;
}

/* Returns the first group with a picture that may be damaged or has not arrived yet. */
static int32_t
find_unsettled(const qvm_nvstream *s)
{
    int32_t group = s->group;
    for (int i = 0; i < MOST_SURFACES; i++)
        if ((s->unasked & 1U << i) && s->group_of[i] < group)
            group = s->group_of[i];
    return group;
}

/* Hands the picture that has waited longest to the sink. */
static bool
hand_out(qvm_nvstream *s)
{
    struct waiting w = s->waiting[0];
    s->n_waiting--;
    memmove(s->waiting, s->waiting + 1, (size_t)s->n_waiting * sizeof *s->waiting);
    if (w.to && !fetch(s, w.surface, w.to))
        return fail(s, "the GPU's frames cannot be copied");
    /* by now the picture is decoded, and so are its references */
    if (w.to && !ask(s, ~0U))
        return false;
    w.event.whole = find_unsettled(s);
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
                           .event = { .kind = QVM_GPU_FRAME,
                                      .slot = -1,
                                      .pts = s->pts,
                                      .order = s->order + s->order_of[surface],
                                      .group = s->group,
                                      .width = (int32_t)f->coded_width,
                                      .height = (int32_t)f->coded_height,
                                      .right = (int32_t)f->coded_width - f->display_area.right,
                                      .bottom = (int32_t)f->coded_height - f->display_area.bottom,
                                      .is_scaled = s->scaled.width != 0 } };
    w->to = s->sink.find(s->sink.user, s->pts, frame_bytes(s), &w->event.slot);
}

/* Called for the picture of the packet being parsed; it has the packet's time. The parser's display
 * order is not used, because it may be wrong where packets were left out. */
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
    /* an H200 reports damage in only one of a picture's slices */
    if (p->nNumSlices > 1)
        return fail(s, "its pictures have several slices");
    if (has_small_blocks(s, p))
        return fail(s, "its blocks are too small for the GPU");
    if (!has_references(s, p))
        return fail(s, "pictures that it refers to are missing");
    while (s->n_waiting == QVM_GPU_DELAY || is_waiting(s, surface))
        if (!hand_out(s))
            return 0;
    if (!settle(s, 1U << surface))
        return 0;
    if (s->gpu->call.cuvidDecodePicture(s->decoder.handle, p))
        return fail(s, "the GPU fails to decode it");
    s->whole |= 1U << surface;
    s->unasked |= 1U << surface;
    s->order_of[surface] = order_of(s, p);
    s->group_of[surface] = s->group;
    let_wait(s, surface);
    return 1;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Called to show a picture; it is ignored. */
static int CUDAAPI
on_display(void *user, CUVIDPARSERDISPINFO *d)
{
    (void)user;
    (void)d;
    return 1;
}

static bool
make_parser(qvm_nvstream *s)
{
    /* one surface, until the format callback returns the number */
    CUVIDPARSERPARAMS p = { .CodecType = qvm_nvcodecs[s->codec].codec,
                            .ulMaxDisplayDelay = DISPLAY_DELAY,
                            .pUserData = s,
                            .pfnSequenceCallback = on_sequence,
                            .pfnDecodePicture = on_picture,
                            .ulMaxNumDecodeSurfaces = 1,
                            .pfnDisplayPicture = on_display };
    s->whole = s->unasked = 0;
    return !s->gpu->call.cuvidCreateVideoParser(&s->parser, &p);
}

qvm_nvstream *
qvm_nvstream_open(qvm_nvdec *g, const qvm_gpu_decoder_stream *about, const qvm_nvdec_sink *sink,
                  const char **why)
{
    const int codec = qvm_nvcodec_find(about->codec_id);
    const unsigned deep = about->format == AV_PIX_FMT_YUV420P10;
    const CUVIDDECODECAPS *c = codec < QVM_NVCODECS ? &g->caps[codec][deep] : NULL;
    *why = !c || !c->bIsSupported ? "the GPU does not decode its format"
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
                         .scaled = about->scaled,
                         .codec = codec,
                         .bit_depth = 2 * deep,
                         .most_width = c->nMaxWidth,
                         .most_height = c->nMaxHeight };
    qvm_find_colours(about->space, about->full_range, &s->colours);
    if (g->call.cuCtxPushCurrent(g->context) || !make_parser(s)) {
        *why = "the GPU cannot open more streams";
        free(s);
        return NULL;
    }
    return s;
}

const char *
qvm_nvstream_give(qvm_nvstream *s, const qvm_gpu_decoder_request *r, const uint8_t *data)
{
    CUVIDSOURCEDATAPACKET packet = { .flags = data ? CUVID_PKT_TIMESTAMP | CUVID_PKT_ENDOFPICTURE
                                                   : CUVID_PKT_ENDOFSTREAM,
                                     .payload = data,
                                     .payload_size = data ? (unsigned long)r->bytes : 0,
                                     .timestamp = r->pts };
    if (data) {
        s->pts = r->pts;
        s->order = (int64_t)r->period << 32;
        s->group = r->group;
    }
    s->n_pictures = data ? 0 : 1; /* at the end of the stream no picture may follow */
    if (!s->why && s->gpu->call.cuvidParseVideoData(s->parser, &packet))
        fail(s, "its packets cannot be parsed");
    if (!s->why && !s->n_pictures)
        fail(s, "a packet has no picture");
    while (!data && !s->why && s->n_waiting)
        hand_out(s);
    if (!data && !s->why)
        settle(s, ~0U);
    return s->why;
}

const char *
qvm_nvstream_begin_anew(qvm_nvstream *s)
{
    s->gpu->call.cuvidDestroyVideoParser(s->parser);
    s->parser = NULL;
    return make_parser(s) ? s->why : "the GPU cannot open more streams";
}

void
qvm_nvstream_close(qvm_nvstream *s)
{
    CUcontext context;
    if (s->parser)
        s->gpu->call.cuvidDestroyVideoParser(s->parser);
    if (s->decoder.handle)
        qvm_nvdecoder_give_back(s->gpu, &s->decoder);
    s->gpu->call.cuCtxPopCurrent(&context);
    free(s);
}
