/* SPDX-License-Identifier: MIT */
/* How clips or images become frames, as JSON. */
#pragma once

#include <jansson.h>

#include "qwenvit.h"

/* Returns an object with all members; NULL if out of memory. */
json_t *qv_preprocess_json(const qv_preprocess *p);
