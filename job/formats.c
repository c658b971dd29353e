/* SPDX-License-Identifier: MIT */
#include "formats.h"

const struct qv_format *const qv_formats[] = { &qv_token_files, NULL };
