/* SPDX-License-Identifier: MIT */
/* The rules for a row of a list. They are here once, for every reader of lists. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "error.h"
#include "qwenvit_job.h"

enum field_kind { TEXT, POSITIVE, SECONDS, COUNT, PLACE, FLAG };

static const char *const wanted[] = {
    [TEXT] = "a text that is not empty", [POSITIVE] = "a number above 0",
    [SECONDS] = "a number from 0 up",    [COUNT] = "an integer from 1 up",
    [PLACE] = "an integer from 0 up",    [FLAG] = "true or false",
};

static const struct {
    const char *name;
    enum field_kind kind;
    size_t at; /* offset of the field in the row */
} fields[] = {
    { "path", TEXT, offsetof(qv_row, path) },
    { "key", TEXT, offsetof(qv_row, key) },
    { "fps", POSITIVE, offsetof(qv_row, own.fps) },
    { "max_frames", COUNT, offsetof(qv_row, own.max_frames) },
    { "max_pixels", COUNT, offsetof(qv_row, own.max_pixels) },
    { "start", SECONDS, offsetof(qv_row, own.start_s) },
    { "end", POSITIVE, offsetof(qv_row, own.end_s) },
    { "offset", PLACE, offsetof(qv_row, own.offset) },
    { "bytes", COUNT, offsetof(qv_row, own.bytes) },
    { "first_frame", FLAG, offsetof(qv_row, own.first_frame) },
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static bool
set_text(const char **field, const qv_row_value *value)
{
    if (value->type != QV_ROW_TEXT || !value->text || !*value->text)
        return false;
    *field = value->text;
    return true;
}

static bool
set_real(double *field, const qv_row_value *value, bool above_zero)
{
    const double v = value->type == QV_ROW_INTEGER ? (double)value->integer : value->real;
    if ((value->type != QV_ROW_INTEGER && value->type != QV_ROW_REAL) || !isfinite(v) || v < 0 ||
        (above_zero && v == 0))
        return false;
    *field = v;
    return true;
}

static bool
set_integer(int64_t *field, const qv_row_value *value, int64_t least)
{
    if (value->type != QV_ROW_INTEGER || value->integer < least)
        return false;
    *field = value->integer;
    return true;
}

static bool
set_flag(bool *field, const qv_row_value *value)
{
    if (value->type != QV_ROW_FLAG)
        return false;
    *field = value->integer;
    return true;
}

const char *
qv_row_set(qv_row *row, const char *name, const qv_row_value *value)
{
    size_t i = 0;
    if (!row || !name || !value)
        return "";
    while (i < N_FIELDS && strcmp(fields[i].name, name) != 0)
        i++;
    if (i == N_FIELDS)
        return "";
    const enum field_kind kind = fields[i].kind;
    void *field = (char *)row + fields[i].at;
    const bool good = kind == TEXT   ? set_text(field, value)
                      : kind == FLAG ? set_flag(field, value)
                      : kind == POSITIVE || kind == SECONDS
                          ? set_real(field, value, kind == POSITIVE)
                          : set_integer(field, value, kind == COUNT);
    row->asks |= kind != TEXT;
    return good ? NULL : wanted[kind];
}

qv_status
qv_row_check(const qv_row *row, qv_error *err)
{
    if (!row)
        return qv_fail(err, QV_EINVAL, "row is NULL");
    const qv_row_own *own = &row->own;
    if (own->end_s > 0 && own->end_s <= own->start_s)
        return qv_fail(err, QV_EINVAL, "\"end\" is %.15g; above \"start\", %.15g", own->end_s,
                       own->start_s);
    return row->path ? QV_OK : qv_fail(err, QV_EINVAL, "no \"path\"");
}

qv_clip_options
qv_row_options(const qv_row_own *own, const qv_clip_options *all)
{
    qv_clip_options o = { .fps = 0 };
    if (all)
        o = *all;
    if (!own)
        return o;
    if (own->fps > 0) {
        o.fps = own->fps;
        o.num_frames = 0;
    }
    o.max_frames = own->max_frames ? own->max_frames : o.max_frames;
    o.start_s = own->start_s;
    o.end_s = own->end_s;
    o.offset = own->offset;
    o.length = own->bytes;
    o.first_frame = own->first_frame || o.first_frame;
    o.max_pixels = own->max_pixels ? own->max_pixels : o.max_pixels;
    return o;
}
