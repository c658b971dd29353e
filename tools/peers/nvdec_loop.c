/* SPDX-License-Identifier: MIT */
/*
 * A loop over NVIDIA's video decoders, as one would write it for one's own clips, to compare with
 * the way `decode` of `qwenvit bench job --decode gpu`. All is in one process with a thread per
 * stream, whose decoder stays open between clips; nothing is checked. It decodes every picture that
 * is sampled or that another one refers to, and copies the sampled ones to the host as RGB, without
 * resizing them.
 *
 *     nvdec_loop [-f FPS] [-s STREAMS] [-r REPEATS] CLIP...
 *
 * Clips are H.264 or HEVC of 8 bits. After a run that makes the decoders it prints a JSON object
 * for each run.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ffnvcodec/dynlink_loader.h>
#include <libavcodec/avcodec.h>
#include <libavcodec/bsf.h>
#include <libavformat/avformat.h>
#include <libswscale/swscale.h>

enum { AHEAD = 4, EXTRA_SURFACES = 4, MOST_STREAMS = 64 };

static struct {
    CudaFunctions *cuda;
    CuvidFunctions *cuvid;
    CUresult CUDAAPI (*alloc_host)(void **at, size_t bytes); /* ffnvcodec has no such function */
    CUcontext context;
    double fps;
    char **clips;
    int n_clips, next;
    long long pictures, sampled; /* of a run, by all streams */
    pthread_mutex_t lock;
} g = { .fps = 2, .lock = PTHREAD_MUTEX_INITIALIZER };

/* One thread's decoder, and the clip that it decodes. */
struct stream {
    CUvideodecoder decoder; /* NULL: none was needed yet */
    cudaVideoCodec codec;
    unsigned width, height, surfaces; /* what the decoder is made for */
    int right, bottom;                /* of the pictures that are shown */
    CUstream queue;
    uint8_t *host; /* a picture's planes, NV12, in locked pages */
    struct SwsContext *scaler;
    uint8_t *rgb;
    double start_s, tick_s, frame_s; /* of the clip: its begin, one unit of its times, a frame */
    int64_t pts;                     /* of the packet that is parsed */
    int waiting[AHEAD], n_waiting;
    long long pictures, sampled;
    const char *clip;
};

static void
need(int is_right, const char *clip, const char *what)
{
    if (is_right)
        return;
    fprintf(stderr, "nvdec_loop: %s: %s\n", clip, what);
    exit(1);
}

/* Returns whether a picture is the first one of its 1/fps seconds. */
static int
is_sampled(const struct stream *s, int64_t pts)
{
    const double rounding = 1e-3, at = ((double)pts * s->tick_s - s->start_s) * g.fps + rounding;
    return at - (double)(long long)at < s->frame_s * g.fps;
}

/* Copies the oldest picture that waits to the host and converts it. */
static void
hand_out(struct stream *s)
{
    CUVIDPROCPARAMS how = { .progressive_frame = 1, .output_stream = s->queue };
    CUdeviceptr from = 0;
    unsigned pitch = 0;
    need(!g.cuvid->cuvidMapVideoFrame(s->decoder, s->waiting[0], &from, &pitch, &how), s->clip,
         "a picture cannot be mapped");
    memmove(s->waiting, s->waiting + 1, (size_t)--s->n_waiting * sizeof *s->waiting);
    const CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                 .srcDevice = from, /* chroma follows luma */
                                 .srcPitch = pitch,
                                 .dstMemoryType = CU_MEMORYTYPE_HOST,
                                 .dstHost = s->host,
                                 .dstPitch = s->width,
                                 .WidthInBytes = s->width,
                                 .Height = s->height * 3 / 2 };
    need(!g.cuda->cuMemcpy2DAsync(&copy, s->queue) && !g.cuda->cuStreamSynchronize(s->queue),
         s->clip, "a picture cannot be copied");
    g.cuvid->cuvidUnmapVideoFrame(s->decoder, from);
    s->scaler = sws_getCachedContext(s->scaler, s->right, s->bottom, AV_PIX_FMT_NV12, s->right,
                                     s->bottom, AV_PIX_FMT_RGB24, SWS_POINT, NULL, NULL, NULL);
    s->rgb = realloc(s->rgb, (size_t)s->right * (size_t)s->bottom * 3);
    need(s->scaler && s->rgb, s->clip, "no memory for a picture");
    const uint8_t *const planes[] = { s->host, s->host + (size_t)s->width * s->height };
    const int strides[] = { (int)s->width, (int)s->width }, row = 3 * s->right;
    sws_scale(s->scaler, planes, strides, 0, s->bottom, &s->rgb, &row);
    s->sampled++;
}

static int CUDAAPI
on_sequence(void *user, CUVIDEOFORMAT *f)
{
    struct stream *s = user;
    const unsigned surfaces = f->min_num_decode_surfaces + EXTRA_SURFACES;
    s->right = f->display_area.right;
    s->bottom = f->display_area.bottom;
    if (s->decoder && s->codec == f->codec && s->width == f->coded_width &&
        s->height == f->coded_height && s->surfaces >= surfaces)
        return (int)s->surfaces;
    need(!f->bit_depth_luma_minus8, s->clip, "it has more than 8 bits");
    if (s->decoder) /* the memory for a picture stays: this program ends soon */
        g.cuvid->cuvidDestroyDecoder(s->decoder);
    s->codec = f->codec;
    s->width = f->coded_width;
    s->height = f->coded_height;
    s->surfaces = surfaces;
    CUVIDDECODECREATEINFO info = { .ulWidth = s->width,
                                   .ulHeight = s->height,
                                   .ulNumDecodeSurfaces = surfaces,
                                   .CodecType = f->codec,
                                   .ChromaFormat = cudaVideoChromaFormat_420,
                                   .ulCreationFlags = cudaVideoCreate_PreferCUVID,
                                   .ulMaxWidth = s->width,
                                   .ulMaxHeight = s->height,
                                   .OutputFormat = cudaVideoSurfaceFormat_NV12,
                                   .DeinterlaceMode = cudaVideoDeinterlaceMode_Weave,
                                   .ulTargetWidth = s->width,
                                   .ulTargetHeight = s->height,
                                   .ulNumOutputSurfaces = 1 };
    info.display_area.right = (short)s->width;
    info.display_area.bottom = (short)s->height;
    need(!g.cuvid->cuvidCreateDecoder(&s->decoder, &info) &&
             !g.alloc_host((void **)&s->host, (size_t)s->width * s->height * 3 / 2),
         s->clip, "the GPU makes no decoder");
    return (int)surfaces;
}

static int CUDAAPI
on_picture(void *user, CUVIDPICPARAMS *p)
{
    struct stream *s = user;
    int reused = s->n_waiting == AHEAD;
    for (int i = 0; i < s->n_waiting; i++)
        reused = reused || s->waiting[i] == p->CurrPicIdx;
    while (reused && s->n_waiting)
        hand_out(s);
    need(!g.cuvid->cuvidDecodePicture(s->decoder, p), s->clip, "a picture cannot be decoded");
    s->pictures++;
    if (is_sampled(s, s->pts))
        s->waiting[s->n_waiting++] = p->CurrPicIdx;
    return 1;
}

static int CUDAAPI
on_display(void *user, CUVIDPARSERDISPINFO *d)
{
    (void)user;
    (void)d;
    return 1;
}

/* Returns whether no picture refers to the picture of a packet in Annex B's form. */
static int
is_unreferenced(const AVPacket *packet, enum AVCodecID codec)
{
    for (int i = 3; i + 1 < packet->size; i++) {
        if (packet->data[i - 3] || packet->data[i - 2] || packet->data[i - 1] != 1)
            continue;
        const int type =
            codec == AV_CODEC_ID_H264 ? packet->data[i] & 31 : packet->data[i] >> 1 & 63;
        if (codec == AV_CODEC_ID_H264 && type >= 1 && type <= 5)
            return !(packet->data[i] & 0x60);
        if (codec == AV_CODEC_ID_HEVC && type < 32)
            return type < 16 && type % 2 == 0;
    }
    return 0;
}

static void
decode(struct stream *s, AVFormatContext *format, const AVStream *from, AVBSFContext *annexb)
{
    const enum AVCodecID codec = from->codecpar->codec_id;
    CUVIDPARSERPARAMS params = { .CodecType = codec == AV_CODEC_ID_H264 ? cudaVideoCodec_H264
                                                                        : cudaVideoCodec_HEVC,
                                 .ulMaxNumDecodeSurfaces = 1,
                                 .ulMaxDisplayDelay = AHEAD,
                                 .pUserData = s,
                                 .pfnSequenceCallback = on_sequence,
                                 .pfnDecodePicture = on_picture,
                                 .pfnDisplayPicture = on_display };
    CUVIDSOURCEDATAPACKET end = { .flags = CUVID_PKT_ENDOFSTREAM };
    CUvideoparser parser;
    AVPacket *packet = av_packet_alloc();
    need(packet && !g.cuvid->cuvidCreateVideoParser(&parser, &params), s->clip,
         "no parser can be made");
    for (; av_read_frame(format, packet) >= 0; av_packet_unref(packet)) {
        if (packet->stream_index != from->index)
            continue;
        need(av_bsf_send_packet(annexb, packet) >= 0 && av_bsf_receive_packet(annexb, packet) >= 0,
             s->clip, "a packet cannot be converted");
        s->pts = packet->pts;
        if (!is_sampled(s, s->pts) && is_unreferenced(packet, codec))
            continue;
        CUVIDSOURCEDATAPACKET data = { .flags = CUVID_PKT_TIMESTAMP | CUVID_PKT_ENDOFPICTURE,
                                       .payload = packet->data,
                                       .payload_size = (unsigned long)packet->size,
                                       .timestamp = packet->pts };
        need(!g.cuvid->cuvidParseVideoData(parser, &data), s->clip, "a packet cannot be parsed");
    }
    g.cuvid->cuvidParseVideoData(parser, &end);
    while (s->n_waiting)
        hand_out(s);
    g.cuvid->cuvidDestroyVideoParser(parser);
    av_packet_free(&packet);
}

static void
decode_clip(struct stream *s, const char *path)
{
    AVFormatContext *format = NULL;
    AVBSFContext *annexb = NULL;
    s->clip = path;
    need(avformat_open_input(&format, path, NULL, NULL) >= 0 &&
             avformat_find_stream_info(format, NULL) >= 0,
         path, "it cannot be opened");
    const int n = av_find_best_stream(format, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
    need(n >= 0, path, "it has no video");
    const AVStream *from = format->streams[n];
    const int h264 = from->codecpar->codec_id == AV_CODEC_ID_H264;
    need(h264 || from->codecpar->codec_id == AV_CODEC_ID_HEVC, path,
         "it is neither H.264 nor HEVC");
    s->tick_s = av_q2d(from->time_base);
    s->frame_s = 1 / av_q2d(from->avg_frame_rate);
    s->start_s = from->start_time == AV_NOPTS_VALUE ? 0 : (double)from->start_time * s->tick_s;
    need(av_bsf_alloc(av_bsf_get_by_name(h264 ? "h264_mp4toannexb" : "hevc_mp4toannexb"),
                      &annexb) >= 0 &&
             avcodec_parameters_copy(annexb->par_in, from->codecpar) >= 0 &&
             av_bsf_init(annexb) >= 0,
         path, "its packets cannot be converted");
    decode(s, format, from, annexb);
    av_bsf_free(&annexb);
    avformat_close_input(&format);
}

static void *
run_stream(void *user)
{
    struct stream *s = user;
    CUcontext context;
    s->pictures = s->sampled = 0;
    need(!g.cuda->cuCtxPushCurrent(g.context) &&
             (s->queue || !g.cuda->cuStreamCreate(&s->queue, CU_STREAM_NON_BLOCKING)),
         "the GPU", "no stream can be made");
    for (;;) {
        pthread_mutex_lock(&g.lock);
        const int i = g.next++;
        pthread_mutex_unlock(&g.lock);
        if (i >= g.n_clips)
            break;
        decode_clip(s, g.clips[i]);
    }
    g.cuda->cuCtxPopCurrent(&context);
    pthread_mutex_lock(&g.lock);
    g.pictures += s->pictures;
    g.sampled += s->sampled;
    pthread_mutex_unlock(&g.lock);
    return NULL;
}

/* Decodes all clips, and returns the seconds that it took. */
static double
run(struct stream *streams, int n)
{
    pthread_t threads[MOST_STREAMS];
    struct timespec began, ended;
    g.next = 0;
    g.pictures = g.sampled = 0;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; i < n; i++)
        need(!pthread_create(&threads[i], NULL, run_stream, &streams[i]), "threads",
             "not as many can be made");
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return (double)(ended.tv_sec - began.tv_sec) + 1e-9 * (double)(ended.tv_nsec - began.tv_nsec);
}

static void
open_gpu(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    CUdevice device;
    need(cuda && !cuda_load_functions(&g.cuda, NULL) && !cuvid_load_functions(&g.cuvid, NULL),
         "the GPU", "NVIDIA's driver is not here, or lacks its video library");
    *(void **)(void *)&g.alloc_host = dlsym(cuda, "cuMemAllocHost_v2");
    need(g.alloc_host && !g.cuda->cuInit(0) && !g.cuda->cuDeviceGet(&device, 0) &&
             !g.cuda->cuCtxCreate(&g.context, CU_CTX_SCHED_BLOCKING_SYNC, device),
         "the GPU", "it cannot be opened");
}

int
main(int argc, char **argv)
{
    static struct stream streams[MOST_STREAMS];
    int n = 14, repeats = 7, wrong = 0;
    for (int c; (c = getopt(argc, argv, "f:s:r:")) != -1;)
        switch (c) {
        case 'f': g.fps = strtod(optarg, NULL); break;
        case 's': n = (int)strtol(optarg, NULL, 10); break;
        case 'r': repeats = (int)strtol(optarg, NULL, 10); break;
        default: wrong = 1;
        }
    g.clips = argv + optind;
    g.n_clips = argc - optind;
    if (wrong || !g.n_clips || n < 1 || n > MOST_STREAMS || !(g.fps > 0)) {
        fprintf(stderr,
                "usage: nvdec_loop [-f FPS] [-s STREAMS, from 1 to %d] [-r REPEATS] CLIP...\n",
                MOST_STREAMS);
        return 2;
    }
    open_gpu();
    run(streams, n);
    for (int i = 0; i < repeats; i++) {
        const double seconds = run(streams, n);
        printf("{\"clips\": %d, \"streams\": %d, \"ms\": %.3f, \"clips_per_s\": %.2f, "
               "\"pictures\": %lld, \"sampled\": %lld, \"pictures_per_s\": %.0f}\n",
               g.n_clips, n, 1e3 * seconds, g.n_clips / seconds, g.pictures, g.sampled,
               (double)g.pictures / seconds);
    }
    return 0;
}
