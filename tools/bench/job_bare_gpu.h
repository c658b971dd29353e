/* SPDX-License-Identifier: MIT */
/* Declares the loop over NVIDIA's video decoders that `qwenvit bench job --decode gpu` compares
 * decoding with: a stream of packets in this process, by NVIDIA's own library. */
#ifndef QV_TOOLS_JOB_BARE_GPU_H
#define QV_TOOLS_JOB_BARE_GPU_H

#include "job_bench.h"
#include "media/media.h"

typedef struct job_bare_stream job_bare_stream;

/* Is told of each frame that is wanted, in the order of decoding. */
struct job_bare_sink {
    bool (*wants)(void *user, int64_t pts);
    qv_status (*take)(void *user, const AVFrame *frame, qv_error *err);
    void *user;
};

/* Opens the GPU for all streams, and a stream of H.264 or HEVC of 8 bits, which one thread uses. */
qv_status job_bare_gpu_open(struct job_bench *j, qv_error *err);
qv_status job_bare_stream_open(const struct job_bench *j, const AVCodecParameters *par,
                               const struct job_bare_sink *sink, job_bare_stream **out,
                               qv_error *err);
/* Decodes a packet of one picture in Annex B's form; NULL has all frames come. */
qv_status job_bare_stream_give(job_bare_stream *s, const AVPacket *packet, qv_error *err);
void job_bare_stream_close(job_bare_stream **s);

#endif
