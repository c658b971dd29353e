/* SPDX-License-Identifier: MIT */
/* What becomes of an item, and what a job starts and ends of the stages that it goes through. */
#pragma once

#include "state.h"

/* item.c: under the lock, but for qv_job_feed */
void qv_job_free_item(qv_job *job, struct qv_job_item *item);
void qv_job_unlink_item(qv_job *job, struct qv_job_item *item); /* takes it from the job's list */
void qv_job_take_up(qv_job *job, struct qv_job_item *item); /* from the list of those that wait */
/* Announces the item to the feeder. Returns QV_EINVAL if it is not valid. */
qv_status qv_job_feed(qv_job *job, struct qv_job_item *item, const char *name, qv_error *err);
/* Fails the item, if it has not failed before. */
void qv_job_fail_item(qv_job *job, struct qv_job_item *item, qv_status status, const qv_error *err);
/* Fails an item that the caller does not hold, and has its end call made once nobody does. It may
 * be freed then. */
void qv_job_lose_item(qv_job *job, struct qv_job_item *item, qv_status status, const qv_error *err);
/* Gives back one hold of an item. After the last, the item moves on as far as it can without
 * calling the sink. Returns its state: after QV_JOB_FAILED the caller must have the end call made;
 * after QV_JOB_DONE it was freed. */
enum qv_job_state qv_job_let_go(qv_job *job, struct qv_job_item *item);
/* Has the end call made for an item that has failed. */
void qv_job_tell_failure(qv_job *job, struct qv_job_item *item);
/* Gives back a hold of frames, and sets the holder's pointer, which may be NULL, to NULL. */
void qv_job_free_frames(qv_job *job, struct qv_job_frames **holder);

/* read_clips.c, device_thread.c, sink.c: without the lock. */
/* Has a clip's decoder, which may be NULL, open the GPUs that are asked for, or asks it which ones
 * an earlier job had it open. */
void qv_job_find_gpus(qv_job *job, qv_decoder *decoder);

/* The threads' functions. */
void *qv_job_read(void *worker);
void *qv_job_compute(void *device);
void *qv_job_sink_thread(void *worker);

void qv_job_device_close(struct qv_job_device *d);

/* Makes the end call for an item that was not done when the job ended. */
void qv_job_cancel_item(qv_job *job, struct qv_job_item *item);
