/* SPDX-License-Identifier: MIT */
/* The parts of checkop: they fill operands, run one case on a device, and judge its result. */
#pragma once

#include "engine/backend.h"

enum { OP_TEXT = 800 };

/* ---- checkop_fill.c: seeded numbers, random operations, operands on the host ----------------- */

struct rng {
    uint64_t state;
};
/* Returns a separate stream of numbers for each (seed, text), so that a case has the same data
 * alone and among other cases. */
struct rng rng_make(uint64_t seed, const char *text);
uint64_t rng_next(struct rng *rng);
int64_t rng_below(struct rng *rng, int64_t n);

enum fill {
    FILL_EXACT, /* small integers, for which every sum is exact and every result fits the dtype */
    FILL_REAL,  /* reals in -1..1, with a few large rows */
    FILL_COUNT
};

/* The operands of an operation as their views describe them. Between rows that lie apart there
 * is NaN. */
struct data {
    struct qv_op op;
    int n;
    struct qv_view desc[QV_MAX_OPERANDS];
    void *bytes[QV_MAX_OPERANDS]; /* NULL: the operand is not used */
};

/* Returns whether op.u.gemm's fields and x_dtype may be read: gemm_few has them too. */
static inline bool
is_gemm(const struct qv_op *op)
{
    return op->kind == QV_OP_gemm || op->kind == QV_OP_gemm_few;
}

/* Draws a small legal operation with ragged sizes. */
struct qv_op random_op(enum qv_op_kind kind, struct rng *rng);
static inline int64_t
element_at(const struct qv_view *v, int64_t row, int64_t col)
{
    return row * v->row_stride + col;
}
/* Returns an element's value, also of a quantised matrix. */
double value_at(const struct qv_view *v, const void *bytes, int64_t row, int64_t col);
bool fill_possible(const struct qv_op *op, enum fill fill);
/* Returns the operation that ref computes instead. Large operations have rows that repeat, so
 * ref computes fewer; and a quantised matrix is replaced by the values that it stands for. */
struct qv_op reference_op(const struct qv_op *op);
void data_alloc(struct data *data, const struct qv_op *op); /* memory that is zero */
void data_fill(struct data *data, enum fill fill, struct rng *rng);
/* Copies the leading rows and columns of src into an operation with fewer, or with another
 * dtype. */
void data_convert(struct data *dst, const struct data *src);
void data_free(struct data *data);
double rng_real(struct rng *rng); /* from -1 to 1 */
void *must_alloc(size_t bytes);   /* memory that is zero; ends the program if there is none */

/* ---- checkop_tables.c: what operations look up ----------------------------------------------- */

/* Fills the places, norms and coords of rows, for items of many grids, clips and images, in any
 * order. */
void fill_items(struct data *data, enum fill fill, struct rng *rng);
/* Fills the coordinates of rope with any position for each row. */
void fill_positions(struct data *data, struct rng *rng);
/* Fills the segments of an attention. Segments of equal length have no list. Otherwise the list is
 * a random partition of the rows, with gaps and empty slots, or without any segment. Rows outside
 * all segments are NaN. */
void fill_segments(struct data *data, struct rng *rng);

/* Rows [first, first + n), which attend to one another. */
struct segment {
    int64_t first, n;
};
struct segment segment_get(const struct data *data, int64_t i);
void segment_put(struct data *data, int64_t i, struct segment segment);
/* Returns the segment that a row is in; n is 0 if there is none. */
struct segment segment_of(const struct data *data, int64_t row);

/* ---- checkop_moved.c: the same rows at other places, with other neighbours ------------------- */

/* Puts the rows of operands (for an attention, the segments) in reverse order, and NaN or
 * infinity into some. Returns for each row of the output where it is now, or -1; NULL if the
 * operation's rows depend on one another. The caller frees it. */
int64_t *move_rows(struct data *data, struct rng *rng);

/* ---- checkop_run.c: one operation on one device, with guards --------------------------------- */

struct side {
    const struct qv_backend *backend;
    struct qv_device *dev;
    struct qv_caps caps;
    int choice; /* which choice of the backend's prepare() */
};

/* Everything that may be wrong with a case. The first fault found is reported. */
#define CHECK_LIST(X)                                                                              \
    X(NOTHING, "passed")                                                                           \
    X(STATUS, "call failed")                                                                       \
    X(LAYOUT, "weights laid out in slices differ")                                                 \
    X(GUARD, "wrote outside a buffer")                                                             \
    X(INPUT, "changed an input")                                                                   \
    X(UNWRITTEN, "left an element unwritten")                                                      \
    X(NAN, "computed NaN or infinity")                                                             \
    X(EXACT, "differs where the result is exact")                                                  \
    X(TOLERANCE, "beyond tolerance")                                                               \
    X(OTHERS, "wrote rows of no segment")                                                          \
    X(REPEAT, "second run differs")                                                                \
    X(MOVED, "differs at another place or with other neighbours")

enum check {
#define CHECK_ENUM(name, text) CHECK_##name,
    CHECK_LIST(CHECK_ENUM)
#undef CHECK_ENUM
        CHECK_COUNT
};
extern const char *const check_names[CHECK_COUNT];

struct outcome {
    enum check check;
    bool skipped, mistrusted;
    /* error and tolerance of the element with the largest ratio of the two; nmse of the worst
     * row */
    double error, tolerance, nmse;
    char text[600];
};

struct job; /* a prepared operation with guarded buffers on a device */
/* Returns NULL if there is nothing to run; the outcome is "skipped" if the backend returns
 * QV_EUNSUPPORTED. */
struct job *job_open(const struct side *side, const struct data *data, bool alias,
                     struct outcome *outcome);
/* Uploads everything anew, runs, checks guards and inputs, and copies the result. */
bool job_run(struct job *job, bool slices, void *result, struct outcome *outcome);
void job_close(struct job *job);
bool fail_case(struct outcome *outcome, enum check check, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* ---- checkop_tolerance.c --------------------------------------------------------------------- */

/*
 * Returns how far a right result may be from the exact value `expected`, for inputs up to max_x and
 * max_w in magnitude: half a unit of the output's dtype, plus the worst f32 accumulation over the
 * operation's sums.
 */
double op_tolerance(const struct qv_op *op, double expected, double max_x, double max_w);

/* ---- checkop_judge.c: is the result right ---------------------------------------------------- */

struct check_case {
    struct qv_op op;
    enum fill fill;
    bool alias; /* for a gemm: its residual is y itself */
    uint64_t seed;
};
bool can_alias(const struct side *side, const struct qv_op *op);
/* Runs the case on both sides and compares the results. */
struct outcome judge(const struct side *ref, const struct side *side, const struct check_case *one);

/* The outcomes of one kind of operation and fill on one backend. */
struct family {
    int passed, failed, skipped, mistrusted;
};
void family_add(struct family *family, const struct outcome *outcome);
/* Returns whether nothing failed, and not everything that ran was mistrusted. */
bool family_ok(const struct family *family);

/* ---- checkop_fault.c: faults that must be found ---------------------------------------------- */

int selftest(const struct side *ref, const struct side *base);
