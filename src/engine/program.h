/* SPDX-License-Identifier: MIT */
/*
 * A program: a list of operations, made ready to run on a device. A tower's plan, a Conv3d and a
 * bench of operations are programs. Preparing one finds a kernel for each operation and an offset
 * for each place, so that all the memory that it needs is known. Loading it gives it that memory
 * and makes its calls.
 */
#pragma once

#include "context.h"

/* An operand is the number of a place in the program's memory, or the number of places plus that of
 * a buffer from outside, such as a weight. */
enum { QV_NO_OPERAND = 0 };

/* A place is as large as its largest use. Number 0 stands for no operand. */
struct qv_place {
    size_t bytes, offset;
    bool own; /* each chunk has its own; otherwise all chunks use it in turn */
};

struct qv_step {
    struct qv_op op;
    int operands[QV_MAX_OPERANDS];
    /* bytes into the operand, such as where k and v of packed qkv begin */
    int64_t offsets[QV_MAX_OPERANDS];
    char layer[40];     /* the layer that this step completes, such as "blocks.0"; else "" */
    int64_t layer_cols; /* columns of that layer's output */
    bool side, waits;   /* as in qv_call */
};

/*
 * An arena is memory that several programs may share. Each chunk under way has a part of its own
 * (input, tables, tokens). Activations and scratch lie after those parts and are used by all chunks
 * in turn, which is safe because the device works in order.
 */
enum { QV_MOST_CHUNKS = QV_MARK_BEGIN - QV_MARK_CHUNK };

struct qv_arena {
    struct qv_memory *memory;
    size_t own_bytes, work_bytes; /* own_bytes: of one chunk; work_bytes: used by all in turn */
    int n_chunks;                 /* how many chunks may be under way */
    bool busy[QV_MOST_CHUNKS];    /* a chunk is under way in this part; set by whoever runs it */
    int users;
};

struct qv_program {
    qv_context *ctx;
    struct qv_step *steps; /* [n], a copy of the caller's */
    size_t n;
    int n_places, n_chunks;
    struct qv_place *places;
    size_t *kernels; /* entries of the context's cache; the first n_kernels are held */
    size_t n_kernels;
    size_t scratch[2]; /* the most that a call needs, on the main and on the side stream */
    size_t scratch_offsets[2];
    size_t own_bytes, work_bytes; /* as in an arena */
    double flops, bytes;          /* sums over the operations */
    struct qv_arena *arena;       /* NULL until it is loaded */
    struct qv_call *calls;        /* [n_chunks][n] */
};

/* Prepares a program for n_chunks chunks that may be under way at once. `places` [n_places] says
 * which are a chunk's own, and may set a least size. A weight that is a place is as large as the
 * device lays it out. qv_program_free must be called whatever is returned. */
qv_status qv_program_prepare(qv_context *ctx, const struct qv_step *steps, size_t n,
                             const struct qv_place *places, int n_places, int n_chunks,
                             struct qv_program *out, qv_error *err);
/* Makes the calls, with memory of the arena, which must be large enough, or of an arena of the
 * program's own if it is NULL. Operand n_places + i is outside[i]. */
qv_status qv_program_load(struct qv_program *p, struct qv_arena *arena,
                          const struct qv_buffer *outside, qv_error *err);
void qv_program_free(struct qv_program *p);

/* The memory that it needs in all, apart from what comes from outside. */
size_t qv_program_bytes(const struct qv_program *p);
/* A place of a chunk, and the chunk's calls [n], once it is loaded. */
struct qv_buffer qv_program_place(const struct qv_program *p, int chunk, int place);
const struct qv_call *qv_program_calls(const struct qv_program *p, int chunk);
/* Writes the name of the kernel that runs a step (qv_backend.describe). The program need not be
 * loaded. */
void qv_program_kernel(const struct qv_program *p, size_t step, char text[QV_KERNEL_BYTES]);

bool qv_arena_holds(const struct qv_arena *arena, const struct qv_program *p);
/* Replaces *arena, which may be NULL, by one that is not smaller in any part and holds programs
 * `times` as large as p. The caller is its user. */
qv_status qv_arena_replace(struct qv_arena **arena, const struct qv_program *p, double times,
                           qv_error *err);
/* Ends a use, and sets *arena to NULL. The last user frees the memory. */
void qv_arena_leave(qv_context *ctx, struct qv_arena **arena);
