/* SPDX-License-Identifier: MIT */
/* A clip's outcome as JSON. */
#pragma once

#include <jansson.h>

#include "qwenvit_clips.h"

/* The readers: the columns of outcome.inc. */
enum qv_outcome_reader { QV_FOR_INFO, QV_FOR_ENCODE, QV_FOR_FILE, QV_FOR_RECORD, QV_READERS };

/* Adds the members visible to this reader whose places are from `first` to before `end`, under
 * their names and in order. Returns 0, or -1 if out of memory or `object` is NULL. */
int qv_outcome_json(json_t *object, const qv_outcome *outcome, enum qv_outcome_reader reader,
                    int first, int end);
enum { QV_LAST_PLACE = 99 }; /* as `end`: all that follow */
