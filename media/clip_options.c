/* SPDX-License-Identifier: MIT */
/* Checks which options of a clip go together, and their bounds. */
#include <math.h>

#include "gpu.h"

qv_status
qvm_check_options(const char *path, const qv_clip_options *o, qv_error *err)
{
    if (o->fps != 0.0 && o->num_frames != 0)
        return qv_fail(err, QV_EINVAL, "%s: fps %g and num_frames %lld exclude each other", path,
                       o->fps, (long long)o->num_frames);
    if (!(o->fps >= 0.0 && o->fps <= 1e6))
        return qv_fail(err, QV_EINVAL, "%s: fps %g; above 0, or 0 for the model's", path, o->fps);
    if (o->num_frames < 0 || o->num_frames > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL, "%s: num_frames %lld; 1 to %d", path,
                       (long long)o->num_frames, QVM_MAX_SAMPLED);
    if (o->min_frames < 0 || o->max_frames < 0 || o->max_frames > QVM_MAX_SAMPLED)
        return qv_fail(err, QV_EINVAL, "%s: min_frames %lld, max_frames %lld; 1 to %d", path,
                       (long long)o->min_frames, (long long)o->max_frames, QVM_MAX_SAMPLED);
    if (o->min_pixels < 0 || o->max_pixels < 0 || o->min_pixels > QVM_MAX_ASKED ||
        o->max_pixels > QVM_MAX_ASKED)
        return qv_fail(err, QV_EINVAL, "%s: min_pixels %lld, max_pixels %lld; 1 to %lld", path,
                       (long long)o->min_pixels, (long long)o->max_pixels,
                       (long long)QVM_MAX_ASKED);
    if (o->like != QV_LIKE_TRANSFORMERS && o->like != QV_LIKE_QWEN_VL_UTILS)
        return qv_fail(err, QV_EINVAL, "%s: like is %d; see qv_like", path, (int)o->like);
    if (o->like == QV_LIKE_QWEN_VL_UTILS && o->cap_pixels)
        return qv_fail(err, QV_EINVAL,
                       "%s: cap_pixels goes with transformers' rules; qwen-vl-utils always caps",
                       path);
    if (o->total_pixels < 0 || (o->total_pixels && o->like != QV_LIKE_QWEN_VL_UTILS))
        return qv_fail(
            err, QV_EINVAL,
            "%s: total_pixels %lld; at least 1, and with the rules of qwen-vl-utils alone", path,
            (long long)o->total_pixels);
    if (o->threads < 0)
        return qv_fail(err, QV_EINVAL, "%s: %d threads; at least 1, or 0 for FFmpeg's choice", path,
                       o->threads);
    if (o->decode_memory < 0 || !(o->decode_seconds >= 0.0 && o->decode_seconds <= 1e6))
        return qv_fail(err, QV_EINVAL, "%s: decode_memory %lld, decode_seconds %g; above 0, or 0",
                       path, (long long)o->decode_memory, o->decode_seconds);
#ifdef QVM_CLIENT
    if (o->trusted)
        return qv_fail(err, QV_EUNSUPPORTED,
                       "%s: trusted; this build decodes in processes of their own alone", path);
#else
    if (o->trusted && o->decoder && o->decode != QV_DECODE_GPU)
        return qv_fail(err, QV_EINVAL, "%s: trusted, and with a decoder: one of the two", path);
#endif
    if ((int)o->decode < QV_DECODE_AUTO || o->decode > QV_DECODE_GPU)
        return qv_fail(err, QV_EINVAL, "%s: decode is %d; see qv_decode", path, (int)o->decode);
    if (o->gpu < 0 || o->gpu >= QVM_MOST_GPUS)
        return qv_fail(err, QV_EINVAL, "%s: gpu %d; from 0 to %d", path, o->gpu, QVM_MOST_GPUS - 1);
    if (o->offset < 0 || o->length < 0 || (o->bytes && (o->offset || o->length)))
        return qv_fail(err, QV_EINVAL, "%s: offset %lld, length %lld; from 0 up, of a file", path,
                       (long long)o->offset, (long long)o->length);
    if (!o->bytes != !o->n_bytes)
        return qv_fail(err, QV_EINVAL, "%s: %zu bytes, which are %s", path, o->n_bytes,
                       o->bytes ? "empty" : "NULL");
    if (!(o->start_s >= 0.0 && isfinite(o->start_s)))
        return qv_fail(err, QV_EINVAL, "%s: start %g; seconds from 0 up", path, o->start_s);
    if (!(o->end_s >= 0.0 && isfinite(o->end_s)))
        return qv_fail(err, QV_EINVAL, "%s: end %g; seconds above 0, or 0 for the clip's end", path,
                       o->end_s);
    if (o->end_s > 0.0 && o->end_s <= o->start_s)
        return qv_fail(err, QV_EINVAL, "%s: end %.15g; above start, %.15g", path, o->end_s,
                       o->start_s);
    for (size_t i = 0; i < sizeof o->reserved / sizeof o->reserved[0]; i++)
        if (o->reserved[i])
            return qv_fail(err, QV_EINVAL, "%s: clip options: reserved field %zu is not zero", path,
                           i);
    return QV_OK;
}
