/* SPDX-License-Identifier: MIT */
/* A clip's outcome as JSON. */
#pragma once

#include <jansson.h>

#include "qwenvit_clips.h"

/* Who reads it: the columns of outcome.inc. */
enum qv_outcome_reader {
    QV_FOR_INFO,
    QV_FOR_ENCODE,
    QV_FOR_FILE,
    QV_FOR_RECORD,
    QV_FOR_PYTHON,
    QV_READERS
};

/* Adds the members that this reader sees, under their names and in their order. Returns 0, or -1 if
 * out of memory or `object` is NULL. */
int qv_outcome_json(json_t *object, const qv_outcome *outcome, enum qv_outcome_reader reader);
