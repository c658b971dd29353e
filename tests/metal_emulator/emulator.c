/* SPDX-License-Identifier: MIT */
/*
 * Runs threadgroups one after the other, each as fibers that go on until they have to wait for
 * others. The fiber that goes on next is drawn at random, so that everything that no barrier orders
 * can come in any order.
 */
#include "fiber.h"
#include "line.h"
#include "memory.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    THREADS = MEMORY_THREADS,
    SIMDGROUPS = THREADS / EMULATOR_LANES,
    ENDLESS = 1 << 22,   /* The most meetings of a threadgroup. */
    STACK_SPARE = 16384, /* Room on a thread's stack for the functions that kernels call. */
    CANARY = 64
};

enum state { READY, AT_BARRIER, IN_SIMDGROUP, DONE };

struct thread {
    struct fiber fiber;
    enum state state;
    uint64_t trace;
    int line;
};

/* The threads of a group, or of a simdgroup, that have come to a point where all of it meet. */
struct meeting {
    uint32_t n;
    const char *what;
    void (*combine)(struct emulator_simdgroup *);
    unsigned flags;
    int line;
    uint64_t trace;
};

struct emulator_now emulator_now;
bool emulator_samples;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t seed;
static bool seeded;

static struct {
    const struct emulator_dispatch *dispatch;
    struct emulator_place place;
    struct fiber main;
    struct thread threads[THREADS];
    struct emulator_simdgroup simdgroups[SIMDGROUPS];
    struct meeting barrier, meetings[SIMDGROUPS];
    uint32_t meetings_of_group, n, ready[THREADS], n_ready, current, n_done;
    uint64_t random;
    double flops; /* of products of matrices */
    bool failed;
    char *error;
    size_t error_size;
} run;

/* ---- errors ---------------------------------------------------------------------------------- */

static void __attribute__((format(printf, 1, 2))) refuse(const char *format, ...)
{
    va_list args;
    int n = snprintf(run.error, run.error_size, "kernel %s: ", run.dispatch->kernel->name);
    run.failed = true;
    if (n < 0 || (size_t)n >= run.error_size)
        return;
    va_start(args, format);
    vsnprintf(run.error + n, run.error_size - (size_t)n, format, args);
    va_end(args);
}

/* Reports a thread's error and leaves the dispatch. No thread of the dispatch continues. */
void
emulator_fault(const void *code, const char *format, ...)
{
    const uint32_t *g = run.place.threadgroup_position;
    char text[256], where[128] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (code)
        line_of_code(code, where, sizeof where);
    if (!where[0] && emulator_now.line)
        snprintf(where, sizeof where, "%s line %d", code ? "after" : "in", emulator_now.line);
    refuse("threadgroup (%u, %u, %u), thread %u%s%s: %s", g[0], g[1], g[2], run.current,
           where[0] ? ", " : "", where, text);
    struct fiber nobody;
    fiber_switch(&nobody, &run.main);
}

void
emulator_wrong(const char *what, int line)
{
    emulator_now.line = line;
    emulator_fault(NULL, "%s", what);
}

void
emulator_overflow(void)
{
    emulator_fault(NULL, "has no stack left of %d bytes", MEMORY_STACK_BYTES - STACK_SPARE);
}

void
emulator_index(const char *source, unsigned line, uint64_t index)
{
    emulator_now.line = (int)line;
    emulator_fault(NULL, "index %lld is outside of an array (%s:%u)", (long long)index, source,
                   line);
}

/* ---- whose turn it is ------------------------------------------------------------------------ */

static uint32_t
draw(uint32_t below)
{
    run.random ^= run.random << 13;
    run.random ^= run.random >> 7;
    run.random ^= run.random << 17;
    return (uint32_t)((run.random >> 32) * below >> 32);
}

static void
become_ready(uint32_t thread)
{
    run.threads[thread].state = READY;
    run.ready[run.n_ready++] = thread;
}

/* Switches from the running fiber to one that is ready, or back to emulator_run if none is. */
static void
go_on(struct fiber *from)
{
    if (!run.n_ready) {
        fiber_switch(from, &run.main);
        return;
    }
    uint32_t i = draw(run.n_ready), next = run.ready[i];
    run.ready[i] = run.ready[--run.n_ready];
    run.current = next;
    struct thread *t = &run.threads[next];
    emulator_now.simdgroup = &run.simdgroups[next / EMULATOR_LANES];
    emulator_now.lane = next % EMULATOR_LANES;
    emulator_now.trace = t->trace;
    emulator_now.line = t->line;
    emulator_now.stack = memory_stack(next) + STACK_SPARE;
    memory_thread(next);
    if (from != &t->fiber)
        fiber_switch(from, &t->fiber);
}

static void
wait_in(enum state state)
{
    struct thread *t = &run.threads[run.current];
    t->state = state;
    t->trace = emulator_now.trace;
    t->line = emulator_now.line;
    go_on(&t->fiber);
}

static bool
same(const struct meeting *a, const struct meeting *b)
{
    return (a->what == b->what || !strcmp(a->what, b->what)) && a->combine == b->combine &&
           a->flags == b->flags && a->line == b->line;
}

/* Adds one thread to a meeting, and tells whether it is the last of `of` threads. */
static bool
last_to_come(struct meeting *at, const struct meeting *call, uint32_t of)
{
    if (!at->n) {
        *at = *call;
    } else if (!same(at, call)) {
        emulator_fault(NULL, "is in %s where others are in %s of line %d", call->what, at->what,
                       at->line);
    } else if (at->trace != call->trace) {
        emulator_fault(NULL, "called simdgroup_load or simdgroup_store otherwise than other lanes "
                             "before this");
    }
    if (++at->n < of)
        return false;
    if (++run.meetings_of_group == ENDLESS)
        emulator_fault(NULL, "%d barriers and functions of simdgroups, and no end", ENDLESS);
    at->n = 0;
    return true;
}

void
emulator_meet(const char *what, void (*combine)(struct emulator_simdgroup *), int line)
{
    uint32_t simdgroup = run.current / EMULATOR_LANES;
    struct meeting call = {
        .what = what, .combine = combine, .line = line, .trace = emulator_now.trace
    };
    emulator_now.line = line;
    bool last = last_to_come(&run.meetings[simdgroup], &call, EMULATOR_LANES);
    emulator_now.trace = 0;
    if (!last) {
        wait_in(IN_SIMDGROUP);
        return;
    }
    struct emulator_simdgroup *s = &run.simdgroups[simdgroup];
    if (combine)
        combine(s);
    s->turn ^= 1;
    for (uint32_t i = simdgroup * EMULATOR_LANES, end = i + EMULATOR_LANES; i < end; i++)
        if (i != run.current)
            become_ready(i);
}

static void
order_simdgroup(struct emulator_simdgroup *s)
{
    memory_order_simdgroup((uint32_t)(s - run.simdgroups));
}

void
emulator_simdgroup_barrier(unsigned flags, int line)
{
    emulator_meet("simdgroup_barrier", flags & EMULATOR_MEM_THREADGROUP ? order_simdgroup : NULL,
                  line);
}

void
emulator_threadgroup_barrier(unsigned flags, int line)
{
    struct meeting call = { .what = "threadgroup_barrier", .flags = flags, .line = line };
    emulator_now.line = line;
    if (last_to_come(&run.barrier, &call, run.n)) {
        if (flags & EMULATOR_MEM_THREADGROUP)
            memory_order_group();
        for (uint32_t i = 0; i < run.n; i++)
            if (i != run.current)
                become_ready(i);
        become_ready(run.current);
        wait_in(READY);
    } else {
        wait_in(AT_BARRIER);
    }
}

/* d = a b + c */
void
emulator_multiply(struct emulator_simdgroup *s)
{
    run.flops += 2 * 8 * 8 * 8;
    for (int i = 0; i < 8; i++) {
        float sum[8];
        memcpy(sum, &s->c[i * 8], sizeof sum);
        for (int k = 0; k < 8; k++) {
            float a = s->a[i * 8 + k];
            for (int j = 0; j < 8; j++)
                sum[j] += a * s->b[k * 8 + j];
        }
        memcpy(&s->d[i * 8], sum, sizeof sum);
    }
}

/* ---- threads and groups ---------------------------------------------------------------------- */

static void
set_place(uint32_t thread)
{
    struct emulator_place *p = &run.place;
    const uint32_t *n = p->threads_per_threadgroup;
    uint32_t at[3] = { thread % n[0], thread / n[0] % n[1], thread / n[0] / n[1] };
    for (int i = 0; i < 3; i++) {
        p->position_in_threadgroup[i] = at[i];
        p->position_in_grid[i] = p->threadgroup_position[i] * n[i] + at[i];
    }
    p->index = thread;
    p->lane = thread % EMULATOR_LANES;
    p->simdgroup = thread / EMULATOR_LANES;
}

/* A fiber, from its first turn to its last. */
static void
run_thread(void)
{
    uint32_t thread = run.current;
    set_place(thread);
    run.dispatch->kernel->thunk(&run.place);
    run.threads[thread].state = DONE;
    run.threads[thread].trace = emulator_now.trace;
    run.threads[thread].line = emulator_now.line;
    run.n_done++;
    struct fiber nobody;
    go_on(&nobody);
}

/* Lets the stacks begin at different distances from a page; otherwise all of them would share a few
 * lines of a cache. */
static void
prepare_threads(void)
{
    run.n_ready = run.n_done = run.meetings_of_group = 0;
    memset(&run.barrier, 0, sizeof run.barrier);
    memset(run.meetings, 0, sizeof run.meetings);
    for (uint32_t i = 0; i < run.n; i++) {
        char *stack = memory_stack(i);
        struct thread *t = &run.threads[i];
        fiber_prepare(&t->fiber, stack, MEMORY_STACK_BYTES - i % 16 * 192, run_thread);
        memset(stack, 0x5a, CANARY);
        t->trace = 0;
        t->line = 0;
        become_ready(i);
    }
}

static const char *
call_of(const struct thread *t)
{
    if (t->state == DONE)
        return "has returned";
    if (t->state == AT_BARRIER)
        return "waits in threadgroup_barrier";
    return run.meetings[(t - run.threads) / EMULATOR_LANES].what;
}

/* Reports that all remaining threads wait for one that never comes. */
static void
explain_standstill(void)
{
    uint32_t waits = 0, other = 0;
    while (run.threads[waits].state == DONE)
        waits++;
    const struct thread *w = &run.threads[waits];
    if (w->state == IN_SIMDGROUP)
        other = waits / EMULATOR_LANES * EMULATOR_LANES;
    while (run.threads[other].state == w->state)
        other++;
    const struct thread *o = &run.threads[other];
    char line[32] = "";
    if (o->line)
        snprintf(line, sizeof line, " of line %d", o->line);
    if (o->line && o->state == DONE)
        snprintf(line, sizeof line, " after line %d", o->line);
    const uint32_t *g = run.place.threadgroup_position;
    refuse("threadgroup (%u, %u, %u): thread %u waits in %s of line %d, which not all%s reach: "
           "thread %u %s%s%s",
           g[0], g[1], g[2], waits, w->state == AT_BARRIER ? "threadgroup_barrier" : call_of(w),
           w->line, w->state == AT_BARRIER ? " threads" : " lanes", other,
           o->state == IN_SIMDGROUP ? "waits in " : "", call_of(o), line);
}

/* Makes the checks that are only possible when all threads have returned. */
static void
check_group(void)
{
    const uint32_t *g = run.place.threadgroup_position;
    for (uint32_t i = 0; i < run.n && !run.failed; i++) {
        const char *stack = memory_stack(i);
        for (int j = 0; j < CANARY; j++)
            if (stack[j] != 0x5a) {
                refuse("threadgroup (%u, %u, %u): thread %u wrote beyond its stack", g[0], g[1],
                       g[2], i);
                return;
            }
        if (run.threads[i].trace != run.threads[i / EMULATOR_LANES * EMULATOR_LANES].trace)
            refuse("threadgroup (%u, %u, %u): not all lanes of thread %u's simdgroup called "
                   "simdgroup_load or simdgroup_store, or not in the same way",
                   g[0], g[1], g[2], i);
    }
}

static void
run_group(uint64_t group)
{
    const uint32_t *n = run.dispatch->groups;
    run.place.threadgroup_position[0] = (uint32_t)(group % n[0]);
    run.place.threadgroup_position[1] = (uint32_t)(group / n[0] % n[1]);
    run.place.threadgroup_position[2] = (uint32_t)(group / n[0] / n[1]);
    memory_begin_group();
    prepare_threads();
    go_on(&run.main);
    if (!run.failed && run.n_done < run.n)
        explain_standstill();
    if (!run.failed)
        check_group();
}

static uint64_t
common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Runs every group once. It starts anywhere, and its step shares no divisor with the number of
 * groups. */
static void
run_groups(void)
{
    const uint32_t *g = run.dispatch->groups;
    uint64_t n = (uint64_t)g[0] * g[1] * g[2], at = draw((uint32_t)(n < UINT32_MAX ? n : 1)), step;
    do {
        step = 1 + draw((uint32_t)(n < UINT32_MAX ? n : UINT32_MAX));
    } while (common_divisor(step, n) != 1);
    const uint64_t runs = emulator_samples ? 1 : n;
    for (uint64_t i = 0; i < runs && !run.failed; i++) {
        run_group(at);
        at = (at + step) % n;
    }
    run.flops *= (double)n / (double)runs;
}

/* ---- dispatches ------------------------------------------------------------------------------ */

const struct emulator_kernel *
emulator_find(const char *library, const char *name)
{
    for (const struct emulator_library *const *l = emulator_libraries; *l; l++)
        for (size_t i = 0; i < (*l)->n_kernels; i++)
            if (!strcmp((*l)->name, library) && !strcmp((*l)->kernels[i].name, name))
                return &(*l)->kernels[i];
    return NULL;
}

void
emulator_seed(uint64_t to)
{
    pthread_mutex_lock(&lock);
    seed = to;
    seeded = true;
    pthread_mutex_unlock(&lock);
}

static void
set_constants(void)
{
    const struct emulator_library *l = run.dispatch->kernel->library;
    for (size_t i = 0; i < l->n_constants && !run.failed; i++) {
        const struct emulator_constant *c = &l->constants[i];
        if (c->index >= EMULATOR_CONSTANTS || !run.dispatch->has_constant[c->index]) {
            refuse("function constant %u (%s) is not set", c->index, c->name);
            return;
        }
        uint32_t value = run.dispatch->constants[c->index];
        if (c->bytes == 1)
            *(unsigned char *)c->value = value != 0;
        else
            memcpy(c->value, &value, sizeof value);
    }
}

static void
check_dispatch(void)
{
    const struct emulator_dispatch *d = run.dispatch;
    const uint32_t *n = d->threads, *g = d->groups;
    uint64_t threads = (uint64_t)n[0] * n[1] * n[2];
    uint32_t most = d->kernel->max_threads ? d->kernel->max_threads : THREADS;
    if (n[0] > THREADS || n[1] > THREADS || n[2] > THREADS || !threads || threads > most)
        refuse("(%u, %u, %u) threads in a threadgroup; at most %u are allowed", n[0], n[1], n[2],
               most);
    else if (threads % EMULATOR_LANES)
        refuse("%u threads of a threadgroup are not whole simdgroups", (uint32_t)threads);
    else if (!g[0] || !g[1] || !g[2])
        refuse("no threadgroups: (%u, %u, %u)", g[0], g[1], g[2]);
    else if (d->threadgroup_bytes > EMULATOR_THREADGROUP_BYTES)
        refuse("%zu bytes of threadgroup memory; only %d are available", d->threadgroup_bytes,
               EMULATOR_THREADGROUP_BYTES);
    else if (d->threadgroup_bytes % 16)
        refuse("%zu bytes of threadgroup memory are not a multiple of 16", d->threadgroup_bytes);
    else if (!memory_threadgroup() || !memory_stack(0))
        refuse("no memory for stacks");
    run.n = (uint32_t)threads;
    for (int i = 0; i < EMULATOR_BUFFERS; i++)
        if (d->buffers[i].is_set && d->buffers[i].bytes > EMULATOR_SET_BYTES)
            refuse("setBytes of %zu bytes at %d; at most %d are allowed", d->buffers[i].bytes, i,
                   EMULATOR_SET_BYTES);
        else if (d->kernel->buffers[i] && d->buffers[i].base &&
                 d->buffers[i].offset > d->buffers[i].bytes)
            refuse("buffer %d is bound at %zu of %zu bytes", i, d->buffers[i].offset,
                   d->buffers[i].bytes);
}

static void
prepare_place(void)
{
    const struct emulator_dispatch *d = run.dispatch;
    struct emulator_place *p = &run.place;
    for (int i = 0; i < EMULATOR_BUFFERS; i++)
        p->buffers[i] = d->buffers[i].base ? d->buffers[i].base + d->buffers[i].offset : NULL;
    p->shared = memory_threadgroup();
    for (int i = 0; i < 3; i++) {
        p->threads_per_threadgroup[i] = d->threads[i];
        p->threadgroups[i] = d->groups[i];
        p->threads[i] = d->groups[i] * d->threads[i];
    }
    p->simdgroups = run.n / EMULATOR_LANES;
}

static void
set_seed(void)
{
    const char *text = getenv("QV_EMULATOR_SEED");
    if (!seeded)
        seed = text ? strtoull(text, NULL, 0) : 1;
    seeded = true;
    run.random = (seed + 1) * 0x9e3779b97f4a7c15;
    run.random = (run.random ^ run.random >> 29) * 0xbf58476d1ce4e5b9;
    run.random |= 1;
}

/* Adds a dispatch's work to its command buffer's counts. */
static void
check_commands(struct emulator_commands *c)
{
    c->dispatches++;
    c->flops += run.flops;
    if (c->dispatches > EMULATOR_MOST_DISPATCHES)
        refuse("more than %d dispatches in a command buffer", EMULATOR_MOST_DISPATCHES);
    else if (c->flops > EMULATOR_MOST_FLOPS)
        refuse("%.3g FLOPs in a command buffer; at most %.3g are allowed", c->flops,
               EMULATOR_MOST_FLOPS);
}

bool
emulator_run(const struct emulator_dispatch *dispatch, char *error, size_t error_size)
{
    return emulator_run_in(&(struct emulator_commands){ 0 }, dispatch, error, error_size);
}

bool
emulator_run_in(struct emulator_commands *commands, const struct emulator_dispatch *dispatch,
                char *error, size_t error_size)
{
    const char *checks = getenv("QV_EMULATOR_CHECKS");
    pthread_mutex_lock(&lock);
    run.flops = 0;
    run.dispatch = dispatch;
    run.error = error;
    run.error_size = error_size;
    run.failed = false;
    check_dispatch();
    if (!run.failed)
        set_constants();
    if (!run.failed) {
        set_seed();
        prepare_place();
        memory_begin(dispatch, !checks || strcmp(checks, "0"));
        run_groups();
    }
    if (!run.failed)
        check_commands(commands);
    bool failed = run.failed;
    pthread_mutex_unlock(&lock);
    return !failed;
}
