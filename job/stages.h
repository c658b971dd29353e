/* SPDX-License-Identifier: MIT */
/* What a job starts and ends of its stages (read_clips.c, device_thread.c, sink.c), without the
 * lock. */
#pragma once

#include "state.h"

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
