/* SPDX-License-Identifier: MIT */
/* An item's way through a job, and the functions that start and end the job's stages. */
#pragma once

#include "state.h"

/* item.c: under the lock, but for qv_job_feed */
void qv_job_free_item(qv_job *job, struct qv_job_item *item);
void qv_job_unlink_item(qv_job *job, struct qv_job_item *item); /* removes it from the job's list */
void qv_job_take_up(qv_job *job, struct qv_job_item *item); /* removes it from the waiting list */
/* Announces the item to the feeder. Returns QV_EINVAL if it is not valid. */
qv_status qv_job_feed(qv_job *job, struct qv_job_item *item, qv_error *err);
/* Fails the item, if it has not failed before. */
void qv_job_fail_item(qv_job *job, struct qv_job_item *item, qv_status status, const qv_error *err);
/* Fails an item that the caller does not hold. Its end call is made once nobody holds it, and it
 * may then be freed. */
void qv_job_lose_item(qv_job *job, struct qv_job_item *item, qv_status status, const qv_error *err);
/* Releases one hold of an item. After the last release, the item moves on as far as it can without
 * calling the sink. Returns its state: if QV_JOB_FAILED, the caller must get the end call made; if
 * QV_JOB_DONE, the item was freed. */
enum qv_job_state qv_job_let_go(qv_job *job, struct qv_job_item *item);
/* Queues the end call of a failed item. */
void qv_job_tell_failure(qv_job *job, struct qv_job_item *item);
/* Releases a hold of frames, and sets the holder's pointer (which may be NULL) to NULL. */
void qv_job_free_frames(qv_job *job, struct qv_job_frames **holder);

/* read_clips.c, device_thread.c, sink.c: without the lock. */
/* Makes a clip's decoder, which may be NULL, open the requested GPUs, or finds which ones it has
 * already opened for an earlier job. */
void qv_job_find_gpus(qv_job *job, qv_decoder *decoder);

/* The threads' functions. */
void *qv_job_read(void *worker);
void *qv_job_compute(void *device);
void *qv_job_sink_thread(void *worker);

void qv_job_device_close(struct qv_job_device *d);

/* Makes the end call for an item that was not done when the job ended. */
void qv_job_cancel_item(qv_job *job, struct qv_job_item *item);
