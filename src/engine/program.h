/* SPDX-License-Identifier: MIT */
/*
 * A program: a list of operations, prepared to run on a device. A tower's plan, a Conv3d and a
 * benchmark of operations are programs. Preparing a program finds a kernel for each operation and
 * an offset for each place, which determines how much memory it needs. Loading it allocates that
 * memory and makes its calls.
 */
#pragma once

#include "context.h"

/* An operand is the index of a place in the program's memory, or the number of places plus the
 * index of an external buffer, such as a weight. */
enum { QV_NO_OPERAND = 0 };

/* A place is as large as its largest use. Index 0 means no operand. */
struct qv_place {
    size_t bytes, offset;
    bool own; /* each chunk has its own; otherwise all chunks use it in turn */
};

struct qv_step {
    struct qv_op op;
    int operands[QV_MAX_OPERANDS];
    /* offset into the operand in bytes, for example of k and v in packed qkv */
    int64_t offsets[QV_MAX_OPERANDS];
    char layer[40];     /* the layer that this step completes, such as "blocks.0"; else "" */
    int64_t layer_cols; /* columns of that layer's output */
    bool side, waits, transient; /* as in qv_call */
};

/*
 * An arena is memory that several programs may share. Each chunk in progress has its own part
 * (input, tables, tokens). Activations and scratch follow these parts and are used by all chunks in
 * turn, which is safe because the device works in order.
 */
enum { QV_MOST_CHUNKS = QV_MARK_BEGIN - QV_MARK_CHUNK };

struct qv_arena {
    struct qv_memory *memory;
    size_t own_bytes, work_bytes; /* own_bytes: of one chunk; work_bytes: used by all in turn */
    int n_chunks;                 /* how many chunks may be in progress */
    bool busy[QV_MOST_CHUNKS];    /* a chunk is using this part; set by whoever runs it */
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
    size_t scratch[2]; /* the most scratch that a call needs, on the main and on the side stream */
    size_t scratch_offsets[2];
    size_t own_bytes, work_bytes; /* as in an arena */
    double flops, bytes;          /* sums over the operations */
    struct qv_arena *arena;       /* NULL until it is loaded */
    struct qv_call *calls;        /* [n_chunks][n] */
};

/* Prepares a program for n_chunks chunks that may be in progress together. `places` [n_places]
 * states which places each chunk has its own copy of, and may set a minimum size. A weight that is
 * a place is as large as the device lays it out. Call qv_program_free even after a failure. */
qv_status qv_program_prepare(qv_context *ctx, const struct qv_step *steps, size_t n,
                             const struct qv_place *places, int n_places, int n_chunks,
                             struct qv_program *out, qv_error *err);
/* Makes the calls, with memory from the arena, which must be large enough; if it is NULL, the
 * program allocates its own arena. Operand n_places + i is outside[i]. */
qv_status qv_program_load(struct qv_program *p, struct qv_arena *arena,
                          const struct qv_buffer *outside, qv_error *err);
void qv_program_free(struct qv_program *p);

/* The total memory that it needs, not counting external buffers. */
size_t qv_program_bytes(const struct qv_program *p);
/* A chunk's place, and its calls [n], once the program is loaded. */
struct qv_buffer qv_program_place(const struct qv_program *p, int chunk, int place);
const struct qv_call *qv_program_calls(const struct qv_program *p, int chunk);
/* Writes the name of the kernel that runs a step (qv_backend.describe). The program need not be
 * loaded. */
void qv_program_kernel(const struct qv_program *p, size_t step, char text[QV_KERNEL_BYTES]);

bool qv_arena_holds(const struct qv_arena *arena, const struct qv_program *p);
/* Replaces *arena, which may be NULL, with an arena that is no smaller in any part and holds
 * programs `times` as large as p. The caller becomes its user. */
qv_status qv_arena_replace(struct qv_arena **arena, const struct qv_program *p, double times,
                           qv_error *err);
/* Ends a use, and sets *arena to NULL. The last user frees the memory. */
void qv_arena_leave(qv_context *ctx, struct qv_arena **arena);
