/* SPDX-License-Identifier: MIT */
/* The parts of checkop: filling operands, running one case on a device, judging, timing. */
#ifndef QV_TESTS_CHECKOP_H
#define QV_TESTS_CHECKOP_H

#include "engine/backend.h"

enum { OP_TEXT = 800 };

/* ---- checkop_fill.c: seeded numbers, random operations, operands on the host ----------------- */

struct rng {
    uint64_t state;
};
/* One stream for each (seed, text): a case has the same data alone as among others. */
struct rng rng_make(uint64_t seed, const char *text);
uint64_t rng_next(struct rng *rng);
int64_t rng_below(struct rng *rng, int64_t n);

enum fill {
    FILL_EXACT, /* small integers: every sum is exact, every result fits the dtype */
    FILL_REAL,  /* reals in -1..1, a few large rows */
    FILL_COUNT
};

/* The operands of one operation as their views have them; NaN between rows that lie apart. */
struct data {
    struct qv_op op;
    int n;
    struct qv_view desc[QV_MAX_OPERANDS];
    void *bytes[QV_MAX_OPERANDS]; /* NULL: not used */
};

/* A small legal operation with ragged sizes. */
struct qv_op random_op(enum qv_op_kind kind, struct rng *rng);
static inline int64_t
element_at(const struct qv_view *v, int64_t row, int64_t col)
{
    return row * v->row_stride + col;
}
/* An element's value, of a quantised matrix too. */
double value_at(const struct qv_view *v, const void *bytes, int64_t row, int64_t col);
bool fill_possible(const struct qv_op *op, enum fill fill);
/* What ref computes for an operation: large ones have rows that repeat, so that fewer will do; and a
 * quantised matrix is one of the values that it stands for. */
struct qv_op reference_op(const struct qv_op *op);
void data_alloc(struct data *data, const struct qv_op *op); /* zero */
void data_fill(struct data *data, enum fill fill, struct rng *rng);
/* Copies the leading rows and columns of src into an operation of fewer, or of another dtype. */
void data_convert(struct data *dst, const struct data *src);
void data_free(struct data *data);
double rng_real(struct rng *rng); /* -1..1 */
void *must_alloc(size_t bytes);   /* zero; ends the program if there is none */

/* ---- checkop_tables.c: what operations look up ----------------------------------------------- */

/* Of rows: places, norms and coords of items of many grids, clips and images, in any order. */
void fill_items(struct data *data, enum fill fill, struct rng *rng);
/* Coordinates of rope: each row anywhere. */
void fill_positions(struct data *data, struct rng *rng);
/* Segments of an attention that are all of one length have no list; else any partition of the rows,
 * with gaps and empty slots, or none at all. Rows that are in none are NaN. */
void fill_segments(struct data *data, struct rng *rng);

/* Rows [first, first + n) that attend to one another. */
struct segment {
    int64_t first, n;
};
struct segment segment_get(const struct data *data, int64_t i);
void segment_put(struct data *data, int64_t i, struct segment segment);
/* The one that a row is in; n 0: none. */
struct segment segment_of(const struct data *data, int64_t row);

/* ---- checkop_moved.c: the same rows at other places, beside others ---------------------------- */

/* Puts the rows of operands (segments of an attention) in reverse, and NaN or infinity into some.
 * Returns where each row of the output is now, or -1; NULL for operations whose rows are not
 * their own. The caller frees it. */
int64_t *move_rows(struct data *data, struct rng *rng);

/* ---- checkop_run.c: one operation on one device, with guards --------------------------------- */

struct side {
    const struct qv_backend *backend;
    struct qv_device *dev;
    struct qv_caps caps;
    int choice; /* of each kernel */
};

/* What can be wrong with a case; the first one found is reported. */
#define CHECK_LIST(X)                                                                              \
    X(NOTHING, "passed")                                                                           \
    X(STATUS, "call failed")                                                                       \
    X(PACK, "weights packed in slices differ")                                                     \
    X(GUARD, "wrote outside a buffer")                                                             \
    X(INPUT, "changed an input")                                                                   \
    X(UNWRITTEN, "left an element unwritten")                                                      \
    X(NAN, "computed NaN or infinity")                                                             \
    X(EXACT, "differs where the result is exact")                                                  \
    X(TOLERANCE, "beyond tolerance")                                                               \
    X(OTHERS, "wrote rows of no segment")                                                          \
    X(REPEAT, "second run differs")                                                                \
    X(MOVED, "differs at another place, beside others")

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
    double error, tolerance, nmse; /* of the element with the largest error over tolerance; of the
                                      worst row */
    char text[600];
};

struct job; /* one prepared operation with guarded buffers on a device */
/* QV_EUNSUPPORTED: outcome says skipped. Returns NULL if there is nothing to run. */
struct job *job_open(const struct side *side, const struct data *data, bool alias,
                     struct outcome *outcome);
/* Uploads everything anew, runs, checks guards and inputs, copies the result. */
bool job_run(struct job *job, bool slices, void *result, struct outcome *outcome);
/* n runs in one call, no checks: for timing. */
qv_status job_repeat(struct job *job, size_t n, qv_error *err);
void job_close(struct job *job);
bool fail_case(struct outcome *outcome, enum check check, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* ---- checkop_tolerance.c --------------------------------------------------------------------- */

/*
 * For inputs up to max_x and max_w in magnitude and an exact value `expected`: half a unit of the
 * output's dtype, plus the worst f32 accumulation over the operation's sums.
 */
double op_tolerance(const struct qv_op *op, double expected, double max_x, double max_w);

/* ---- checkop_judge.c: is the result right ---------------------------------------------------- */

struct check_case {
    struct qv_op op;
    enum fill fill;
    bool alias; /* gemm: the residual is y */
    uint64_t seed;
};
bool can_alias(const struct side *side, const struct qv_op *op);
/* Runs the case on both sides and compares. */
struct outcome judge(const struct side *ref, const struct side *side, const struct check_case *one);

/* The outcomes of one kind and fill, of one backend. */
struct family {
    int passed, failed, skipped, mistrusted;
};
void family_add(struct family *family, const struct outcome *outcome);
/* Nothing failed, and not everything that ran was mistrusted. */
bool family_ok(const struct family *family);

/* ---- checkop_bench.c ------------------------------------------------------------------------- */

struct timing {
    double median_us, p90_us, ref_us; /* ref_us 0: not timed */
    int samples;
};
bool bench(const struct side *ref, const struct side *side, const struct qv_op *op, uint64_t seed,
           struct timing *out);

/* ---- checkop_fault.c: faults that must be found ---------------------------------------------- */

int selftest(const struct side *ref, const struct side *base, uint64_t seed);

#endif
