/* SPDX-License-Identifier: MIT */
/* Opens NVIDIA's GPUs, and makes and keeps their video decoders (nvdec.h). */
#include "nvcuvid.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const struct qvm_nvcodec qvm_nvcodecs[] = { { AV_CODEC_ID_H264, cudaVideoCodec_H264 },
                                            { AV_CODEC_ID_HEVC, cudaVideoCodec_HEVC } };

int
qvm_nvcodec_find(int id)
{
    int codec = 0;
    while (codec < QVM_NVCODECS && (int)qvm_nvcodecs[codec].id != id)
        codec++;
    return codec;
}

/* ---- the device ------------------------------------------------------------------------------ */

static const char *
load(struct qvm_nvcalls *call)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda)
        return "NVIDIA's driver (libcuda.so.1) was not found";
    void *cuvid = dlopen("libnvcuvid.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuvid)
        return "NVIDIA's video library (libnvcuvid.so.1) was not found; a container gets it with "
               "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video";
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
    for (int i = 0; i < QVM_NVCODECS; i++)
        for (unsigned deep = 0; deep < 2; deep++) {
            CUVIDDECODECAPS *c = &g->caps[i][deep];
            *c = (CUVIDDECODECAPS){ .eCodecType = qvm_nvcodecs[i].codec,
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
    return *out ? load(&(*out)->call) : "memory ran out";
}

/* ---- decoders -------------------------------------------------------------------------------- */

int64_t
qvm_nvdecoder_bytes(const struct qvm_nvshape *s)
{
    return (int64_t)s->width * s->height * 3 / 2 * (s->bit_depth ? 2 : 1);
}

/* Returns the bytes of RGB at the largest size that frames are resized to. */
static int64_t
rgb_bytes(const struct qvm_nvshape *s)
{
    return 3 * (int64_t)(s->width + QVM_SCALED_MORE) * (s->height + QVM_SCALED_MORE);
}

static int64_t
surface_bytes(const struct qvm_nvshape *s)
{
    return qvm_nvdecoder_bytes(s) * s->surfaces + 2 * rgb_bytes(s); /* a scaler has two */
}

/* Allocates memory in locked pages. cuMemAllocHost would map it as shared memory, which no memory
 * limit counts. The sandbox therefore refuses such a mapping for pictures above 2 MiB. */
static bool
lock_pages(const qvm_nvdec *g, size_t bytes, void **out)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return false;
    if (g->call.cuMemHostRegister(at, bytes, 0)) {
        munmap(at, bytes);
        return false;
    }
    *out = at;
    return true;
}

static void
free_parts(const qvm_nvdec *g, struct qvm_nvdecoder *d)
{
    if (d->handle)
        g->call.cuvidDestroyDecoder(d->handle);
    if (d->host) {
        g->call.cuMemHostUnregister(d->host);
        munmap(d->host, (size_t)rgb_bytes(&d->shape));
    }
    qvm_nvscaler_free(g, &d->scaler);
    if (d->queue)
        g->call.cuStreamDestroy(d->queue);
    *d = (struct qvm_nvdecoder){ .handle = NULL };
}

/* Makes a decoder for streams of this shape. Returns false if the driver cannot make one. */
static bool
make_decoder(qvm_nvdec *g, const struct qvm_nvshape *s, struct qvm_nvdecoder *d)
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
    *d = (struct qvm_nvdecoder){ .shape = *s, .bytes = surface_bytes(s) };
    if (!g->call.cuStreamCreate(&d->queue, 1 /* CU_STREAM_NON_BLOCKING */) &&
        lock_pages(g, (size_t)rgb_bytes(s), &d->host) &&
        !g->call.cuvidCreateDecoder(&d->handle, &info))
        return true;
    d->handle = NULL;
    free_parts(g, d);
    return false;
}

static void
free_decoder(qvm_nvdec *g, struct qvm_nvdecoder *d)
{
    const int64_t bytes = d->handle ? d->bytes : 0;
    free_parts(g, d);
    pthread_mutex_lock(&g->lock);
    g->bytes -= bytes;
    pthread_mutex_unlock(&g->lock);
}

/* Takes an idle decoder out of the list. The caller holds the lock. */
static struct qvm_nvdecoder
pick(qvm_nvdec *g, int i)
{
    const struct qvm_nvdecoder d = g->idle[i];
    g->n_idle--;
    memmove(g->idle + i, g->idle + i + 1, (size_t)(g->n_idle - i) * sizeof *g->idle);
    return d;
}

const char *
qvm_nvdecoder_take(qvm_nvdec *g, const struct qvm_nvshape *s, struct qvm_nvdecoder *d)
{
    struct qvm_nvdecoder spare[QVM_NVIDLE];
    const int64_t bytes = surface_bytes(s);
    int n_spare = 0, i;
    pthread_mutex_lock(&g->lock);
    for (i = g->n_idle; i-- > 0 && memcmp(&g->idle[i].shape, s, sizeof *s) != 0;)
        ;
    if (i >= 0)
        *d = pick(g, i);
    int64_t given = 0;
    while (i < 0 && g->n_idle && g->bytes + bytes - given > QVM_GPU_PICTURES) {
        spare[n_spare] = pick(g, 0);
        given += spare[n_spare++].bytes;
    }
    const bool full = i < 0 && g->bytes + bytes - given > QVM_GPU_PICTURES;
    g->bytes += i < 0 && !full ? bytes : 0;
    pthread_mutex_unlock(&g->lock);
    for (int k = 0; k < n_spare; k++)
        free_decoder(g, &spare[k]);
    if (i >= 0)
        return NULL;
    if (full)
        return "the GPU has no memory left for decoders";
    if (make_decoder(g, s, d))
        return NULL;
    pthread_mutex_lock(&g->lock);
    g->bytes -= bytes;
    pthread_mutex_unlock(&g->lock);
    return "the GPU cannot make more decoders";
}

void
qvm_nvdecoder_give_back(qvm_nvdec *g, struct qvm_nvdecoder *d)
{
    struct qvm_nvdecoder oldest = { .handle = NULL };
    pthread_mutex_lock(&g->lock);
    if (g->n_idle == QVM_NVIDLE)
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
    qvm_nvscale_open(g);
    g->call.cuCtxPopCurrent(&context);
    for (int i = 0; i < QVM_NVCODECS; i++)
        if (g->caps[i][0].bIsSupported)
            return NULL;
    return "it has no decoders for H.264 or HEVC";
}

bool
qvm_nvdec_try(qvm_nvdec *g)
{
    const struct qvm_nvshape usual = { qvm_nvcodecs[0].codec, 0, 1280, 720, 9 };
    struct qvm_nvdecoder d;
    CUcontext context;
    if (g->call.cuCtxPushCurrent(g->context))
        return false;
    const bool made = !qvm_nvdecoder_take(g, &usual, &d);
    if (made)
        qvm_nvdecoder_give_back(g, &d);
    g->call.cuCtxPopCurrent(&context);
    return made;
}

const char *
qvm_no_nvdec(void)
{
    return "";
}
