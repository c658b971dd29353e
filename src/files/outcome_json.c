/* SPDX-License-Identifier: MIT */
#include "outcome_json.h"

#include <stddef.h>
#include <stdint.h>

#include "outcome.inc"

/* How a member appears to a reader. */
struct seen {
    const char *name;     /* NULL: the reader does not see it */
    bool if_set;          /* it is left out where it is 0 or "" */
    const char *no, *yes; /* of a flag; NULL: it is a boolean */
};

#define AS(name) name, false, NULL, NULL
#define SET(name) name, true, NULL, NULL
#define WORD(name, no, yes) name, false, no, yes
#define NO NULL, false, NULL, NULL
#define QV_OUTCOME(member, kind, from, info, encode, file, record, python)                         \
    { offsetof(qv_outcome, member),                                                                \
      QV_OUTCOME_##kind,                                                                           \
      { { info }, { encode }, { file }, { record }, { python } } },

static const struct row {
    size_t at;
    enum qv_outcome_kind kind;
    struct seen seen[QV_READERS];
} rows[] = {
#include "outcome.inc"
};

/* The list has each member of the struct once, in order. */
struct listed {
#define QV_OUTCOME(member, ...) __typeof__(((qv_outcome *)NULL)->member) member;
#include "outcome.inc"
};
#define QV_OUTCOME(member, ...)                                                                    \
    _Static_assert(offsetof(struct listed, member) == offsetof(qv_outcome, member),                \
                   "qv_outcome." #member " is not at its place in outcome.inc");
#include "outcome.inc"
_Static_assert(sizeof(struct listed) == sizeof(qv_outcome), "outcome.inc lacks a last member");

static json_t *
value_of(const qv_outcome *o, const struct row *row, const struct seen *seen)
{
    const void *at = (const char *)o + row->at;
    const int64_t *grid = at;
    switch (row->kind) {
    case QV_OUTCOME_FLAG:
        return seen->no ? json_string(*(const bool *)at ? seen->yes : seen->no)
                        : json_boolean(*(const bool *)at);
    case QV_OUTCOME_INT: return json_integer(*(const int *)at);
    case QV_OUTCOME_INT64: return json_integer(*(const int64_t *)at);
    case QV_OUTCOME_REAL: return json_real(*(const double *)at);
    case QV_OUTCOME_TEXT: return json_string(at);
    case QV_OUTCOME_GRID:
        return json_pack("[I,I,I]", (json_int_t)grid[0], (json_int_t)grid[1], (json_int_t)grid[2]);
    case QV_OUTCOME_LIKE: return json_string(qv_like_name(*(const qv_like *)at));
    case QV_OUTCOME_REMARK: return json_string(qv_remark_text(*(const qv_remark *)at));
    case QV_OUTCOME_DECODE: {
        const qv_decode by = *(const qv_decode *)at;
        return json_string(seen->if_set && by == QV_DECODE_AUTO ? "" : qv_decode_name(by));
    }
    }
    return NULL;
}

int
qv_outcome_json(json_t *object, const qv_outcome *o, enum qv_outcome_reader reader)
{
    for (const struct row *row = rows; row < rows + sizeof rows / sizeof *rows; row++) {
        const struct seen *seen = &row->seen[reader];
        json_t *value = seen->name ? value_of(o, row, seen) : NULL;
        if (seen->if_set && value && !json_number_value(value) && !json_string_length(value))
            json_decref(value);
        else if (seen->name && json_object_set_new(object, seen->name, value))
            return -1;
    }
    return 0;
}
