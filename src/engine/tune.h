/* SPDX-License-Identifier: MIT */
/*
 * Measured choices, kept in a file by device with library versions, then by a text that describes
 * the work.
 *     {"format": "qwenvit tune 2",
 *      "devices": {DEVICE: {WORK: {"choice": NAME, "ms": {NAME: milliseconds}}}}}
 */
#pragma once

#include <jansson.h>

#include "backend.h"

struct qv_tune {
    bool measure;
    char *path;        /* NULL: choices are kept in memory only */
    bool readable;     /* the file is absent or ours; if false it is never written */
    json_t *root;      /* what the file holds, and what was measured since */
    char device[256];  /* the key: backend, device, library versions, threads */
    char warning[256]; /* what is wrong with the file, or "" */
};

/* Reads the file if there is one. A file that is damaged or foreign leaves a warning, and no
 * choices. Returns QV_ENOMEM only. */
qv_status qv_tune_open(struct qv_tune *tune, const char *path, bool measure, const char *backend,
                       const struct qv_caps *caps, qv_error *err);
void qv_tune_close(struct qv_tune *tune);

/* Returns the choice for this work, or NULL; valid until the next qv_tune_choose. */
const char *qv_tune_find(const struct qv_tune *tune, const char *work);
/* Returns the time that one way took when it was measured; 0: it was not measured. */
double qv_tune_ms(const struct qv_tune *tune, const char *work, const char *way);

/* qv_tune_measured remembers a time. qv_tune_choose remembers the choice, and writes the file; if
 * that fails there is a warning. */
void qv_tune_measured(struct qv_tune *tune, const char *work, const char *way, double ms);
void qv_tune_choose(struct qv_tune *tune, const char *work, const char *choice);
