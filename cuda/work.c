/* SPDX-License-Identifier: MIT */
/* Runs lists of calls in order, or records them as a graph, and sets marks in the work. */
#include "cuda.h"

#include <stdlib.h>

#include "clock.h"

/* Makes work enqueued on `after` from now on wait for the work on `before`. */
static qv_status
order(struct qv_device_cuda *dev, cudaStream_t before, cudaEvent_t event, cudaStream_t after,
      qv_error *err)
{
    qv_status status = qv_check_cuda(dev, cudaEventRecord(event, before), "cudaEventRecord", err);
    if (!status)
        status =
            qv_check_cuda(dev, cudaStreamWaitEvent(after, event, 0), "cudaStreamWaitEvent", err);
    return status;
}

/* Returns whether `at` is n bytes after `from`. */
static bool
is_after(struct qv_buffer at, struct qv_buffer from, int64_t n)
{
    return at.memory == from.memory && at.offset == from.offset + (size_t)n;
}

/* Returns whether one kernel runs both calls, on Hopper: a gemm, and the rope or gate of its y. The
 * gate's y must not overlap the gemm's x, which the kernel reads until it ends. */
static bool
are_one(const struct qv_device_cuda *dev, const struct qv_call *gemm, const struct qv_call *next)
{
    const struct qv_op *first = &gemm->kernel->op, *second = &next->kernel->op;
    if (dev->sm != 90 || first->kind != QV_OP_gemm || next->side != gemm->side || next->waits ||
        !qv_gemm_with_is_hopper_cuda(&first->u.gemm, second, dev->multiprocessors))
        return false;
    const struct qv_buffer x = gemm->operands[0], y = gemm->operands[4], *of = next->operands;
    if (second->kind == QV_OP_rope)
        return is_after(of[3], y, 0);
    const int64_t half = second->u.gate.cols * 2, to = second->u.gate.rows * half;
    const int64_t from = first->u.gemm.m * first->u.gemm.k * 2;
    return gemm->transient && is_after(of[0], y, 0) && is_after(of[1], y, half) &&
           (of[2].memory != x.memory || of[2].offset + (size_t)to <= x.offset ||
            x.offset + (size_t)from <= of[2].offset);
}

/* Runs the first of n calls, or the first two at once. *ran: their number. */
static qv_status
run_first(struct qv_device_cuda *dev, const struct qv_call *calls, size_t n, size_t *ran,
          qv_error *err)
{
    const struct qv_kernel *kernel = calls[0].kernel;
    void *p[2][QV_MAX_OPERANDS];
    *ran = n > 1 && are_one(dev, &calls[0], &calls[1]) ? 2 : 1;
    for (size_t k = 0; k < *ran; k++)
        for (int i = 0; i < QV_MAX_OPERANDS; i++)
            p[k][i] = address_cuda(calls[k].operands[i]);
    if (*ran == 1)
        return kernel->verbs->run(dev, kernel, p[0], address_cuda(calls[0].scratch), err);
    return qv_check_cuda(dev,
                         qv_gemm_with_hopper_cuda(dev->stream, &kernel->op.u.gemm,
                                                  &calls[1].kernel->op, p[0], p[1],
                                                  dev->multiprocessors),
                         "qv_gemm_with_hopper_cuda", err);
}

/* An instantiated graph, and an event that it records when its calls on the side stream are
 * complete. */
struct qv_recording {
    cudaGraphExec_t exec;
    cudaEvent_t side_done;
};

/* Captures the list, with a branch of the graph for calls on the side stream. */
static qv_status
branch_list(struct qv_device_cuda *dev, const struct qv_call *calls, size_t n,
            cudaEvent_t side_done, qv_error *err)
{
    qv_status status = QV_OK;
    bool forked = false;
    for (size_t i = 0, ran = 1; i < n && !status; i += ran) {
        bool side = calls[i].side, fork = side && (i == 0 || !calls[i - 1].side);
        if (fork)
            status = order(dev, dev->recorder, dev->fork, dev->side, err);
        else if (forked && calls[i].waits)
            status = order(dev, dev->side, dev->join, dev->recorder, err);
        forked = forked || fork;
        dev->stream = side ? dev->side : dev->recorder;
        if (!status && dev->cudnn)
            status =
                qv_check_cudnn(dev, cudnnSetStream(dev->cudnn, dev->stream), "cudnnSetStream", err);
        if (!status)
            status = run_first(dev, calls + i, n - i, &ran, err);
    }
    if (forked && !status)
        status =
            qv_check_cuda(dev,
                          cudaEventRecordWithFlags(side_done, dev->side, cudaEventRecordExternal),
                          "cudaEventRecord", err);
    if (forked && !status)
        status = order(dev, dev->side, dev->join, dev->recorder, err);
    return status;
}

static qv_status
wait_for_uploads(struct qv_device_cuda *dev, qv_error *err)
{
    if (!dev->uploads)
        return QV_OK;
    dev->uploads = false;
    return qv_check_cuda(dev, cudaStreamWaitEvent(dev->stream, dev->uploaded, 0),
                         "cudaStreamWaitEvent", err);
}

qv_status
qv_run_cuda(struct qv_device *device, const struct qv_call *calls, size_t n, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    qv_status status = wait_for_uploads(dev, err);
    for (size_t i = 0, ran; i < n && !status; i += ran)
        status = run_first(dev, calls + i, n - i, &ran, err);
    return status;
}

enum { MOST_CAPTURES = 8 };

/* Captures the list on a separate stream, because the work's stream may be the caller's and not
 * allow it. *broken: another thread of the process waited for the whole device, which ends every
 * capture. */
static qv_status
capture(struct qv_device_cuda *dev, const struct qv_call *calls, size_t n, cudaEvent_t side_done,
        cudaGraph_t *graph, bool *broken, qv_error *err)
{
    cudaStream_t work = dev->stream;
    *broken = false;
    qv_status status =
        qv_check_cuda(dev, cudaStreamBeginCapture(dev->recorder, cudaStreamCaptureModeThreadLocal),
                      "cudaStreamBeginCapture", err);
    if (status)
        return status;
    status = branch_list(dev, calls, n, side_done, err);
    dev->stream = work;
    cudaError_t e = cudaStreamEndCapture(dev->recorder, graph); /* also needed after a failure */
    *broken = e == cudaErrorStreamCaptureInvalidated;
    if (!status)
        status = qv_check_cuda(dev, e, "cudaStreamEndCapture", err);
    if (dev->cudnn)
        cudnnSetStream(dev->cudnn, work);
    cudaGetLastError();
    return status;
}

void
qv_forget_cuda(struct qv_device *device, struct qv_recording *r)
{
    struct qv_device_cuda *dev = device_cuda(device);
    if (r->exec)
        qv_note_free_cuda(dev, cudaGraphExecDestroy(r->exec), "cudaGraphExecDestroy");
    if (r->side_done)
        qv_note_free_cuda(dev, cudaEventDestroy(r->side_done), "cudaEventDestroy");
    free(r);
}

qv_status
qv_record_cuda(struct qv_device *device, const struct qv_call *calls, size_t n,
               struct qv_recording **out, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    struct qv_recording *r = calloc(1, sizeof *r);
    cudaGraph_t graph = NULL;
    bool broken = true;
    if (!r)
        return qv_fail(err, QV_ENOMEM, "no memory for a recording");
    qv_status status =
        qv_check_cuda(dev,
                      cudaEventCreateWithFlags(&r->side_done,
                                               cudaEventBlockingSync | cudaEventDisableTiming),
                      "cudaEventCreate", err);
    for (int attempt = 0; attempt < MOST_CAPTURES && !status && broken; attempt++) {
        status = capture(dev, calls, n, r->side_done, &graph, &broken, err);
        if (broken && attempt + 1 < MOST_CAPTURES)
            status = qv_check_device_cuda(dev, err);
    }
    if (!status)
        status = qv_check_cuda(dev, cudaGraphInstantiate(&r->exec, graph, 0),
                               "cudaGraphInstantiate", err);
    if (graph)
        cudaGraphDestroy(graph);
    if (!status)
        status = qv_check_cuda(dev, cudaGraphUpload(r->exec, dev->stream), "cudaGraphUpload", err);
    if (!status)
        *out = r;
    else
        qv_forget_cuda(device, r);
    return status;
}

qv_status
qv_replay_cuda(struct qv_device *device, struct qv_recording *recording, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    qv_status status = wait_for_uploads(dev, err);
    if (!status)
        status = qv_check_cuda(dev, cudaGraphLaunch(recording->exec, dev->stream),
                               "cudaGraphLaunch", err);
    return status;
}

/* The device is busy with the rest of the list meanwhile, so the thread sleeps. */
qv_status
qv_wait_side_cuda(struct qv_device *device, struct qv_recording *recording, qv_error *err)
{
    return qv_check_cuda(device_cuda(device), cudaEventSynchronize(recording->side_done),
                         "the work on the device", err);
}

qv_status
qv_mark_cuda(struct qv_device *device, int mark, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    dev->last_mark = mark;
    return qv_check_cuda(dev, cudaEventRecord(dev->marks[mark], dev->stream), "cudaEventRecord",
                         err);
}

/* The thread sleeps until the mark is reached, and takes 0.1 ms to wake up. If no work follows the
 * mark, so that the device would be idle meanwhile, it polls first. */
#define MOST_SPIN_S 3e-3

qv_status
qv_wait_cuda(struct qv_device *device, int mark, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    const double until_s = mark == dev->last_mark ? qv_seconds() + MOST_SPIN_S : 0;
    cudaError_t e = cudaErrorNotReady;
    while (e == cudaErrorNotReady && qv_seconds() < until_s)
        e = cudaEventQuery(dev->marks[mark]);
    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* cudaEventQuery's */
        e = cudaEventSynchronize(dev->marks[mark]);
    }
    return qv_check_cuda(dev, e, "the work on the device", err);
}

qv_status
qv_elapsed_cuda(struct qv_device *device, int begin, int end, double *ms, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    float between = 0;
    qv_status status =
        qv_check_cuda(dev, cudaEventElapsedTime(&between, dev->marks[begin], dev->marks[end]),
                      "cudaEventElapsedTime", err);
    *ms = between;
    return status;
}

qv_status
qv_sync_cuda(struct qv_device *device, qv_error *err)
{
    struct qv_device_cuda *dev = device_cuda(device);
    const cudaStream_t streams[] = { dev->in.stream, dev->stream, dev->out.stream };
    qv_status status = QV_OK;
    for (size_t i = 0; i < sizeof streams / sizeof *streams && !status; i++)
        status =
            qv_check_cuda(dev, cudaStreamSynchronize(streams[i]), "the work on the device", err);
    return status;
}
