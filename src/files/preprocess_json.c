/* SPDX-License-Identifier: MIT */
#include "preprocess_json.h"

#include <stddef.h>

/* The struct has no padding, so a member missing from the list would make it larger. */
enum {
#define QV_PREPROCESS(kind, member) +sizeof(((qv_preprocess *)NULL)->member)
    LISTED_BYTES = 0
#include "preprocess.inc"
};
_Static_assert(LISTED_BYTES == sizeof(qv_preprocess), "preprocess.inc lacks a member");

static json_t *
reals(const double *x)
{
    return json_pack("[f,f,f]", x[0], x[1], x[2]);
}

json_t *
qv_preprocess_json(const qv_preprocess *p)
{
    json_t *j = json_object();
    bool lost = false;
#define INT64(x) json_integer(x)
#define INT(x) json_integer((json_int_t)(x))
#define REAL(x) json_real(x)
#define REALS(x) reals(x)
#define QV_PREPROCESS(kind, member) lost = json_object_set_new(j, #member, kind(p->member)) || lost;
#include "preprocess.inc"
    if (!lost)
        return j;
    json_decref(j);
    return NULL;
}
