/* SPDX-License-Identifier: MIT */
/* Shared by nvdec.c and nvstream.c: NVIDIA's functions (from FFmpeg's ffnvcodec) and decoders. */
#pragma once

#include <ffnvcodec/dynlink_cuda.h>
#include <ffnvcodec/dynlink_cuviddec.h>
#include <ffnvcodec/dynlink_nvcuvid.h>

#include "nvdec.h"

enum { QVM_NVIDLE = 32 }; /* decoders kept open between clips */

/* The types of functions that the headers lack. */
typedef CUresult CUDAAPI cuda_register(void *at, size_t bytes, unsigned flags);
typedef CUresult CUDAAPI cuda_unregister(void *at);

/* The functions of NVIDIA's libraries that we call. */
struct qvm_nvcalls {
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
    CALL(cuda, cuMemHostRegister, cuda_register, "cuMemHostRegister_v2")                           \
    CALL(cuda, cuMemHostUnregister, cuda_unregister, "cuMemHostUnregister")                        \
    CALL(cuda, cuMemcpyDtoHAsync, tcuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync_v2")                   \
    CALL(cuda, cuMemcpyHtoD, tcuMemcpyHtoD_v2, "cuMemcpyHtoD_v2")                                  \
    CALL(cuda, cuMemAlloc, tcuMemAlloc_v2, "cuMemAlloc_v2")                                        \
    CALL(cuda, cuMemFree, tcuMemFree_v2, "cuMemFree_v2")                                           \
    CALL(cuda, cuModuleLoadData, tcuModuleLoadData, "cuModuleLoadData")                            \
    CALL(cuda, cuModuleGetFunction, tcuModuleGetFunction, "cuModuleGetFunction")                   \
    CALL(cuda, cuLaunchKernel, tcuLaunchKernel, "cuLaunchKernel")                                  \
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

/* The shape of the streams that a decoder is made for and can be reused for. */
struct qvm_nvshape {
    cudaVideoCodec codec;
    unsigned bit_depth;     /* bits of a sample above 8: 0 or 2 */
    unsigned width, height; /* of the coded pictures */
    unsigned surfaces;      /* pictures that fit into the decoder's memory on the GPU */
};

struct qvm_nvdecoder {
    CUvideodecoder handle; /* NULL: none */
    CUstream queue;
    /* a picture's planes in locked pages: copies to other pages are serialised across the
     * process */
    void *host;
    struct qvm_nvscaler *scaler; /* of the last stream with resized frames, or NULL */
    struct qvm_nvshape shape;
    int64_t bytes; /* size of all surfaces, and the most that a scaler needs */
};

enum { QVM_NVCODECS = 2 };
extern const struct qvm_nvcodec {
    enum AVCodecID id;
    cudaVideoCodec codec;
} qvm_nvcodecs[QVM_NVCODECS];

/* Returns the index of a codec in qvm_nvcodecs, or QVM_NVCODECS. */
int qvm_nvcodec_find(int id);

struct qvm_nvdec {
    struct qvm_nvcalls call;
    CUcontext context;
    CUfunction across, down; /* of scale.cu; across is NULL: frames are not resized here */
    CUVIDDECODECAPS caps[QVM_NVCODECS][2]; /* for 8 and for 10 bits per sample */
    pthread_mutex_t lock;                  /* guards the members below */
    struct qvm_nvdecoder idle[QVM_NVIDLE]; /* [n_idle], ascending by their last use */
    int n_idle;
    int64_t bytes; /* surfaces' bytes of all decoders */
};

/* Takes an idle decoder of this shape, or makes one, freeing idle decoders of other shapes if
 * necessary. Returns NULL, or why there is none. */
const char *qvm_nvdecoder_take(qvm_nvdec *gpu, const struct qvm_nvshape *shape,
                               struct qvm_nvdecoder *decoder);
/* Keeps a decoder for a later stream of its shape. */
void qvm_nvdecoder_give_back(qvm_nvdec *gpu, struct qvm_nvdecoder *decoder);
/* Returns the bytes of a picture's planes. */
int64_t qvm_nvdecoder_bytes(const struct qvm_nvshape *shape);

/* ---- nvscale.c: frames are converted and resized on the GPU ---------------------------------- */

/* Loads the kernels, unless their results differ from the CPU's. */
void qvm_nvscale_open(qvm_nvdec *gpu);
/* Replaces *scaler by one for this size, if necessary. Returns false, with NULL, on failure. */
bool qvm_nvscaler_make(const qvm_nvdec *gpu, const qvm_scaled *size, struct qvm_nvscaler **scaler);
void qvm_nvscaler_free(const qvm_nvdec *gpu, struct qvm_nvscaler **scaler);
/* Enqueues the kernels for a frame, and the copy of the result to the host. The planes' rows are
 * `pitch` bytes apart. */
CUresult qvm_nvscaler_run(const qvm_nvdec *gpu, struct qvm_nvscaler *scaler, CUdeviceptr luma,
                          CUdeviceptr chroma, unsigned pitch, const qvm_colours *colours,
                          CUstream queue, void *to);
/* Returns whether the GPU makes the same bytes as the CPU from a planar frame with even sides. */
bool qvm_nvscale_agrees(const qvm_nvdec *gpu, const AVFrame *frame, int to_width, int to_height);
