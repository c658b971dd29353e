/* SPDX-License-Identifier: MIT */
/* Compares options with a model's own values: one equal to the model's default counts as unset. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

/* ---- options of one clip --------------------------------------------------------------------- */

/* Returns a rate in frames per 10^6 seconds, as in records; 0 if it is out of range. */
static int64_t
micro(double fps)
{
    return fps > 0 && fps < 1e9 ? llround(fps * 1e6) : 0;
}

static bool
is_recorded(const struct qvm_option *p)
{
    return p->row && !(p->scopes & QVM_TIMES);
}

/* Returns whether caches know a default for an option that a row may have. */
static bool
has_usual(const struct qvm_option *p)
{
    return is_recorded(p) && p->scopes & QVM_MADE_BY && !qvm_option_is_later(p);
}

const char *
qv_cache_options_text(const qv_clip_options *own, char text[QV_CACHE_OPTIONS_BYTES])
{
    size_t n = 0;
    bool any = false;
    for (int later = 0; later < 2; later++) /* first the fields that all versions wrote */
        QVM_EACH_OPTION (p) {
            const int64_t value =
                qvm_option_is_real(p) ? micro(qvm_option_real(p, own)) : qvm_option_integer(p, own);
            if (!is_recorded(p) || qvm_option_is_later(p) != later || (later && !value))
                continue;
            any = any || value;
            n += (size_t)snprintf(text + n, QV_CACHE_OPTIONS_BYTES - n, "%c\"%s\":", n ? ',' : '{',
                                  p->row);
            n += (size_t)(qvm_option_is_real(p) /* the same in every locale */
                              ? snprintf(text + n, QV_CACHE_OPTIONS_BYTES - n,
                                         "%" PRId64 ".%06" PRId64, value / 1000000, value % 1000000)
                              : p->kind == QVM_A_FLAG
                                    ? snprintf(text + n, QV_CACHE_OPTIONS_BYTES - n, "true")
                                    : snprintf(text + n, QV_CACHE_OPTIONS_BYTES - n, "%" PRId64,
                                               value));
        }
    snprintf(text + n, QV_CACHE_OPTIONS_BYTES - n, "}");
    return any ? text : NULL;
}

/* Parses a text of qv_cache_options_text; false if its values would be printed differently. */
static bool
read_options(const char *text, qv_clip_options *own)
{
    char again[QV_CACHE_OPTIONS_BYTES];
    *own = (qv_clip_options){ 0 };
    if (!text)
        return true;
    json_t *j = json_loads(text, 0, NULL);
    QVM_EACH_OPTION (p) {
        const json_t *value = json_object_get(j, p->row);
        qvm_option_put(p, own, json_is_true(value) ? 1 : json_integer_value(value),
                       json_number_value(value));
    }
    json_decref(j);
    const char *same = qv_cache_options_text(own, again);
    return same && !strcmp(same, text);
}

const char *
qv_cache_normal(const struct qv_cache_usual *usual, int is_image, bool in_full, const char *options,
                char text[QV_CACHE_OPTIONS_BYTES])
{
    const qv_clip_options *any = &usual->of[2],
                          *usually = is_image < 0 ? any : &usual->of[is_image > 0];
    qv_clip_options own;
    if (!read_options(options, &own))
        return options;
    QVM_EACH_OPTION (p) {
        const double now = qvm_option_real(p, usually);
        if (!has_usual(p) || (qvm_option_real(p, &own) != 0 && qvm_option_real(p, &own) != now))
            continue;
        const bool stays = in_full && now != qvm_option_real(p, any);
        qvm_option_put(p, &own, stays ? qvm_option_integer(p, usually) : 0, stays ? now : 0);
    }
    return qv_cache_options_text(&own, text);
}

/* ---- options of all clips -------------------------------------------------------------------- */

/* The values that qwen-vl-utils uses for every checkpoint. */
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

/* Returns the model's value of an option for a clip (kind 0), for an image (1), or for both (2); 0
 * if it is unset or the two differ. */
static double
own_value(const json_t *preprocessing, const char *name, int kind)
{
    const json_t *options = json_object_get(preprocessing, "options"),
                 *video = json_object_get(preprocessing, "video"),
                 *image = json_object_get(preprocessing, "image");
    if (is_like_utils(options))
        return !strcmp(name, "fps")          ? UTILS_FPS
               : !strcmp(name, "min_frames") ? UTILS_MIN_FRAMES
                                             : 0;
    const double of_clips = number_at(video, name), of_images = number_at(image, name);
    if (!strstr(name, "_pixels") || kind == 0)
        return of_clips;
    return kind == 1 || of_images == of_clips ? of_images : 0;
}

struct qv_cache_usual
qv_cache_usual_of(const json_t *description)
{
    const json_t *p = json_object_get(description, "preprocessing"),
                 *options = json_object_get(p, "options");
    struct qv_cache_usual usual = { .of = { { 0 } } };
    QVM_EACH_OPTION (option)
        for (int kind = 0; kind < 3 && has_usual(option); kind++) {
            const double all = number_at(options, option->name);
            const double now = all > 0 ? all : own_value(p, option->name, kind);
            if (!(now > 0 && now < 1e15))
                continue;
            qvm_option_put(option, &usual.of[kind], llround(now), (double)micro(now) / 1e6);
            if (number_at(options, "num_frames") > 0)
                usual.of[kind].fps = 0;
        }
    return usual;
}

json_t *
qv_cache_resolved(const json_t *description)
{
    json_t *copy = json_deep_copy(description);
    json_object_del(copy, "model"); /* weights are compared separately */
    json_t *p = json_object_get(copy, "preprocessing"), *options = json_object_get(p, "options");
    bool lost = false;
    QVM_EACH_OPTION (option) {
        const json_t *value = json_object_get(options, option->name);
        const bool is_real = qvm_option_is_real(option);
        if (!json_is_number(value) || (!is_real && !json_is_integer(value)))
            continue;
        const double number = json_number_value(value);
        const bool is_own = number == own_value(p, option->name, 2);
        if (is_real || is_own)
            lost =
                json_object_set_new(options, option->name,
                                    is_real ? json_real(is_own ? 0 : number) : json_integer(0)) ||
                lost;
    }
    if (!lost)
        return copy;
    json_decref(copy);
    return NULL;
}
