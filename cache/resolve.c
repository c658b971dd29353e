/* SPDX-License-Identifier: MIT */
/* Compares options with the values that a model has anyway: an option that asks for what it would
 * get without it asks for nothing. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

/* ---- options of one clip --------------------------------------------------------------------- */

static const char first_frame[] = ",\"first_frame\":true"; /* left out where it is false */

const char *
qv_cache_asked_text(const struct qv_cache_asked *a, char text[QV_CACHE_OPTIONS_BYTES])
{
    if (a->fps_micro <= 0 && !a->max_frames && !a->max_pixels && !a->offset && !a->bytes &&
        !a->first_frame)
        return NULL;
    snprintf(text, QV_CACHE_OPTIONS_BYTES, /* the same in every locale */
             "{\"fps\":%" PRId64 ".%06" PRId64 ",\"max_frames\":%" PRId64 ",\"max_pixels\":%" PRId64
             ",\"offset\":%" PRId64 ",\"bytes\":%" PRId64 "%s}",
             a->fps_micro / 1000000, a->fps_micro % 1000000, a->max_frames, a->max_pixels,
             a->offset, a->bytes, a->first_frame ? first_frame : "");
    return text;
}

/* Parses a text of qv_cache_asked_text. Returns false for any other text: printing the values again
 * must give the same text. */
static bool
read_asked(const char *text, struct qv_cache_asked *a)
{
    int64_t whole = 0, micro = 0;
    const struct {
        const char *before;
        int64_t *to;
    } numbers[] = { { "{\"fps\":", &whole },
                    { ".", &micro },
                    { ",\"max_frames\":", &a->max_frames },
                    { ",\"max_pixels\":", &a->max_pixels },
                    { ",\"offset\":", &a->offset },
                    { ",\"bytes\":", &a->bytes } };
    char again[QV_CACHE_OPTIONS_BYTES];
    *a = (struct qv_cache_asked){ .bytes = 0 };
    if (!text)
        return true;
    const char *at = text;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const size_t n = strlen(numbers[i].before);
        char *end = NULL;
        if (strncmp(at, numbers[i].before, n) != 0)
            return false;
        *numbers[i].to = strtoll(at + n, &end, 10);
        at = end;
    }
    if (whole < 0 || whole > INT64_MAX / 1000000 - 1)
        return false;
    a->fps_micro = whole * 1000000 + micro;
    a->first_frame = !strncmp(at, first_frame, sizeof first_frame - 1);
    const char *same = qv_cache_asked_text(a, again);
    return same && !strcmp(same, text);
}

bool
qv_cache_asks_the_same(const struct qv_cache_usual *usual, int is_image, const char *start,
                       const char *end, const char *options, uint64_t asked)
{
    struct qv_cache_asked a;
    if (qv_cache_asked_hash(start, end, options) == asked)
        return true;
    if (!read_asked(options, &a))
        return false;
    const int64_t usually[] = { usual->fps_micro, usual->max_frames,
                                is_image < 0 ? 0 : usual->max_pixels[is_image > 0] };
    int64_t *const fields[] = { &a.fps_micro, &a.max_frames, &a.max_pixels };
    const int64_t wanted[] = { a.fps_micro, a.max_frames, a.max_pixels };
    for (unsigned ways = 1; ways < 8; ways++) { /* each bit swaps a field: its usual value for 0, or
                                                 * 0 for its usual value */
        bool can = true;
        char text[QV_CACHE_OPTIONS_BYTES];
        for (int i = 0; i < 3; i++) {
            const bool other = ways >> i & 1;
            can = can && (!other || (usually[i] && (!wanted[i] || wanted[i] == usually[i])));
            *fields[i] = !other ? wanted[i] : wanted[i] ? 0 : usually[i];
        }
        if (can && qv_cache_asked_hash(start, end, qv_cache_asked_text(&a, text)) == asked)
            return true;
    }
    return false;
}

/* ---- options of all clips -------------------------------------------------------------------- */

/* The values that qwen-vl-utils uses whatever the checkpoint says. */
#define UTILS_FPS 2.0
enum { UTILS_MIN_FRAMES = 4 };

static double
number_at(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static bool
is_like_utils(const json_t *options)
{
    const char *like = json_string_value(json_object_get(options, "like"));
    return like && strcmp(like, "transformers") != 0;
}

/* Returns the model's own value of an option of all clips; 0: there is none, or clips and images
 * have different ones. */
static double
own_value(const json_t *preprocessing, const char *name)
{
    const json_t *options = json_object_get(preprocessing, "options"),
                 *video = json_object_get(preprocessing, "video"),
                 *image = json_object_get(preprocessing, "image");
    if (is_like_utils(options))
        return !strcmp(name, "fps")          ? UTILS_FPS
               : !strcmp(name, "min_frames") ? UTILS_MIN_FRAMES
                                             : 0;
    const double of_clips = number_at(video, name);
    return strstr(name, "_pixels") && number_at(image, name) != of_clips ? 0 : of_clips;
}

struct qv_cache_usual
qv_cache_usual_of(const json_t *description)
{
    const json_t *p = json_object_get(description, "preprocessing"),
                 *options = json_object_get(p, "options");
    const bool utils = is_like_utils(options);
    struct qv_cache_usual usual = { .fps_micro = 0 };
    const double fps = number_at(options, "fps"), frames = number_at(options, "max_frames");
    const double fps_now = fps > 0 ? fps : own_value(p, "fps");
    const double frames_now = frames > 0 ? frames : own_value(p, "max_frames");
    if (!(number_at(options, "num_frames") > 0) && fps_now > 0 && fps_now < 1e6)
        usual.fps_micro = llround(fps_now * 1e6);
    if (frames_now > 0 && frames_now < 1e15)
        usual.max_frames = llround(frames_now);
    for (int i = 0; i < 2; i++) {
        const double all = number_at(options, "max_pixels"),
                     own = utils
                               ? 0
                               : number_at(json_object_get(p, i ? "image" : "video"), "max_pixels");
        const double now = all > 0 ? all : own;
        usual.max_pixels[i] = now > 0 && now < 1e15 ? llround(now) : 0;
    }
    return usual;
}

json_t *
qv_cache_resolved(const json_t *description)
{
    static const char *const integers[] = { "min_frames", "max_frames", "min_pixels",
                                            "max_pixels" };
    json_t *copy = json_deep_copy(description);
    json_object_del(copy, "model"); /* its folder does not matter, and its weights are compared
                                     * apart */
    json_t *p = json_object_get(copy, "preprocessing"), *options = json_object_get(p, "options");
    if (!json_is_object(options))
        return copy;
    bool lost = false;
    const double fps = number_at(options, "fps");
    if (json_object_get(options, "fps"))
        lost = json_object_set_new(options, "fps", json_real(fps == own_value(p, "fps") ? 0 : fps));
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        const json_t *value = json_object_get(options, integers[i]);
        if (json_is_integer(value) && number_at(options, integers[i]) == own_value(p, integers[i]))
            lost = json_object_set_new(options, integers[i], json_integer(0)) || lost;
    }
    if (!lost)
        return copy;
    json_decref(copy);
    return NULL;
}
