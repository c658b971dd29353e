/* SPDX-License-Identifier: MIT */
/*
 * Checks every access of a kernel to memory before it happens. An address may lie in the thread's
 * own stack, in threadgroup memory, in a buffer of the dispatch or in the library's static data.
 * For each byte of threadgroup memory this keeps the last writer and two readers. A stamp is the
 * time, counted in barriers, and the thread. Two accesses, at least one of them a write, are
 * ordered if they belong to the same thread, or if a barrier for both threads lies between them.
 */
#include "memory.h"

#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum {
    THREAD_BITS = 10,
    LAST_TIME = (1 << 22) - 2,
    SPARE = 1 << 20,   /* Spare room in front of the stacks and around threadgroup memory. */
    ENDLESS = 1 << 30, /* How many accesses a thread may make without a call that lets other threads
                        * go on. */
    BYTES = EMULATOR_THREADGROUP_BYTES
};

struct region {
    uintptr_t start;
    size_t bytes;
    bool written;
    int index;
};

static struct {
    uintptr_t stack, threadgroup;
    size_t threadgroup_bytes;
    const struct emulator_library *library;
    struct region regions[EMULATOR_BUFFERS], *last;
    int n_regions;
    uintptr_t constants[2]; /* The start and the end of the part of the program that cannot be
                             * written. */
    bool checks;
    uint32_t time, thread, stamp, budget;
    uint32_t start, since; /* The first stamps of this threadgroup, and the first after its last
                            * barrier. */
    uint32_t simdgroup_since[MEMORY_THREADS / EMULATOR_LANES];
    uint32_t writer[BYTES], reader[BYTES], other_reader[BYTES];
    char *stacks, *block;
} m;

static char *
map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

char *
memory_threadgroup(void)
{
    if (!m.block && (m.block = map(2 * SPARE + BYTES)))
        m.block += SPARE;
    return m.block;
}

char *
memory_stack(uint32_t thread)
{
    if (!m.stacks && (m.stacks = map(SPARE + (size_t)MEMORY_THREADS * MEMORY_STACK_BYTES)))
        m.stacks += SPARE;
    return m.stacks ? m.stacks + (size_t)thread * MEMORY_STACK_BYTES : NULL;
}

/* Finds the constants in the part of the program that holds the library. */
static int
find_constants(struct dl_phdr_info *info, size_t size, void *nothing)
{
    uintptr_t first = UINTPTR_MAX, last = 0;
    bool here = false;
    (void)size;
    (void)nothing;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        uintptr_t end = start + info->dlpi_phdr[i].p_memsz, p = (uintptr_t)m.library;
        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        here |= p >= start && p < end;
        if (!(info->dlpi_phdr[i].p_flags & PF_W)) {
            first = start < first ? start : first;
            last = end > last ? end : last;
        }
    }
    if (here) {
        m.constants[0] = first;
        m.constants[1] = last;
    }
    return here;
}

void
memory_begin(const struct emulator_dispatch *d, bool checks)
{
    m.n_regions = 0;
    for (int i = 0; i < EMULATOR_BUFFERS; i++) {
        const struct emulator_buffer *b = &d->buffers[i];
        if (d->kernel->buffers[i] == EMULATOR_UNUSED || !b->base || b->offset > b->bytes)
            continue;
        m.regions[m.n_regions++] =
            (struct region){ (uintptr_t)(b->base + b->offset), b->bytes - b->offset,
                             d->kernel->buffers[i] == EMULATOR_WRITTEN, i };
    }
    m.last = m.regions;
    m.checks = checks;
    m.library = d->kernel->library;
    if (!m.constants[1])
        dl_iterate_phdr(find_constants, NULL);
    m.threadgroup = (uintptr_t)m.block;
    m.threadgroup_bytes = d->threadgroup_bytes;
}

static uint32_t
next_time(void)
{
    if (m.time == LAST_TIME)
        emulator_fault(NULL, "%d barriers of one threadgroup, and no end", LAST_TIME / 2);
    return ++m.time << THREAD_BITS;
}

void
memory_begin_group(void)
{
    if (m.time > LAST_TIME / 2) {
        m.time = 0;
        memset(m.writer, 0, sizeof m.writer);
        memset(m.reader, 0, sizeof m.reader);
        memset(m.other_reader, 0, sizeof m.other_reader);
    }
    m.start = m.since = next_time();
    for (size_t i = 0; i < sizeof m.simdgroup_since / sizeof m.simdgroup_since[0]; i++)
        m.simdgroup_since[i] = m.start;
    memset(m.block, 0xff, m.threadgroup_bytes);
}

void
memory_thread(uint32_t thread)
{
    m.thread = thread;
    m.stamp = m.time << THREAD_BITS | thread;
    m.stack = (uintptr_t)m.stacks + (uintptr_t)thread * MEMORY_STACK_BYTES;
    m.budget = ENDLESS;
}

void
memory_order_group(void)
{
    m.since = next_time();
    m.stamp = m.since | m.thread;
}

void
memory_order_simdgroup(uint32_t simdgroup)
{
    m.simdgroup_since[simdgroup] = next_time();
    m.stamp = m.time << THREAD_BITS | m.thread;
}

/* ---- threadgroup memory ---------------------------------------------------------------------- */

static uint32_t
thread_of(uint32_t stamp)
{
    return stamp & ((1 << THREAD_BITS) - 1);
}

static uint32_t
simdgroup_of(uint32_t stamp)
{
    return thread_of(stamp) / EMULATOR_LANES;
}

static bool
ordered(uint32_t stamp)
{
    return stamp < m.since || thread_of(stamp) == m.thread ||
           (simdgroup_of(stamp) == m.thread / EMULATOR_LANES &&
            stamp < m.simdgroup_since[m.thread / EMULATOR_LANES]);
}

static void
race(size_t at, uint32_t stamp, const char *did, const char *does, const void *code)
{
    emulator_fault(code,
                   "%s threadgroup memory at %zu, which thread %u %s, and no barrier of "
                   "threadgroup memory lies between",
                   does, at, thread_of(stamp), did);
}

/* The second reader that is kept is, if possible, of another simdgroup than the first: no
 * simdgroup_barrier orders all readers that are kept then. */
static inline void
note_reader(size_t i)
{
    uint32_t r = m.reader[i], o = m.other_reader[i];
    if (r < m.since || thread_of(r) == m.thread)
        m.reader[i] = m.stamp;
    else if (o < m.since || thread_of(o) == m.thread || simdgroup_of(o) == simdgroup_of(r))
        m.other_reader[i] = m.stamp;
}

static inline void
read_threadgroup(size_t at, size_t n, const void *code)
{
    for (size_t i = at; i < at + n; i++) {
        uint32_t w = m.writer[i];
        if (w - m.start >= m.since - m.start) { /* It was written since the last barrier, or
                                                 * never. */
            if (w < m.start)
                emulator_fault(code, "reads threadgroup memory at %zu, where nothing was written",
                               i);
            else if (!ordered(w))
                race(i, w, "wrote", "reads", code);
        }
        note_reader(i);
    }
}

static inline void
write_threadgroup(size_t at, size_t n, const void *code)
{
    for (size_t i = at; i < at + n; i++) {
        uint32_t w = m.writer[i], r = m.reader[i], o = m.other_reader[i];
        if (w >= m.since && !ordered(w))
            race(i, w, "wrote", "writes", code);
        if (r >= m.since && !ordered(r))
            race(i, r, "read", "writes", code);
        if (o >= m.since && !ordered(o))
            race(i, o, "read", "writes", code);
        m.writer[i] = m.stamp;
    }
}

/* ---- all memory ------------------------------------------------------------------------------ */

/* Describes where an address lies: in or near which argument's memory. */
static void
describe(uintptr_t p, char *out, size_t size)
{
    const struct region *near = NULL;
    uintptr_t distance = SPARE;
    if (p + SPARE - m.threadgroup < 2 * SPARE + BYTES) {
        snprintf(out, size, "%td of threadgroup memory, which has %zu",
                 (ptrdiff_t)(p - m.threadgroup), m.threadgroup_bytes);
        return;
    }
    for (const struct region *r = m.regions; r < m.regions + m.n_regions; r++) {
        uintptr_t behind = p - r->start, d = behind < r->bytes ? 0 : behind - r->bytes;
        if (p < r->start)
            d = r->start - p;
        if (d < distance) {
            distance = d;
            near = r;
        }
    }
    if (near)
        snprintf(out, size, "%td of buffer %d, which has %zu%s", (ptrdiff_t)(p - near->start),
                 near->index, near->bytes, near->written ? "" : " and is constant");
    else
        snprintf(out, size, "%p, which is in no buffer of the dispatch", (void *)p);
}

static void
outside(uintptr_t p, size_t n, bool writes, const void *code)
{
    char where[128];
    describe(p, where, sizeof where);
    emulator_fault(code, "%s %zu bytes at %s", writes ? "writes" : "reads", n, where);
}

static void
misaligned(const void *p, size_t n, const void *code)
{
    char where[128];
    describe((uintptr_t)p, where, sizeof where);
    emulator_fault(code, "an access at %p, which is not a multiple of %zu: at %s",
                   (void *)(uintptr_t)p, n, where);
}

static bool
in_static(uintptr_t p, size_t n)
{
    return (p >= m.constants[0] && p + n <= m.constants[1]) ||
           (p >= (uintptr_t)m.library->data[0] && p + n <= (uintptr_t)m.library->data[1]);
}

static bool
in_region(const struct region *r, uintptr_t p, size_t n, bool writes)
{
    return p - r->start < r->bytes && n <= r->bytes - (p - r->start) && (!writes || r->written);
}

static void
elsewhere(uintptr_t p, size_t n, bool writes, const void *code)
{
    for (struct region *r = m.regions; r < m.regions + m.n_regions; r++)
        if (in_region(r, p, n, writes)) {
            m.last = r;
            return;
        }
    if (!writes && in_static(p, n))
        return;
    outside(p, n, writes, code);
}

static inline void
look(uintptr_t p, size_t n, bool writes, const void *code)
{
    if (p - m.stack < MEMORY_STACK_BYTES)
        return;
    if (!--m.budget)
        emulator_fault(code, "%d accesses to memory, and no end", ENDLESS);
    size_t at = p - m.threadgroup;
    if (at < m.threadgroup_bytes && n <= m.threadgroup_bytes - at) {
        if (!m.checks)
            return;
        if (writes)
            write_threadgroup(at, n, code);
        else
            read_threadgroup(at, n, code);
        return;
    }
    if (m.n_regions && in_region(m.last, p, n, writes))
        return;
    elsewhere(p, n, writes, code);
}

#define ACCESS(n)                                                                                  \
    void emulator_read##n(const void *p)                                                           \
    {                                                                                              \
        if ((uintptr_t)p % n)                                                                      \
            misaligned(p, n, __builtin_return_address(0));                                         \
        look((uintptr_t)p, n, false, __builtin_return_address(0));                                 \
    }                                                                                              \
    void emulator_write##n(const void *p)                                                          \
    {                                                                                              \
        if ((uintptr_t)p % n)                                                                      \
            misaligned(p, n, __builtin_return_address(0));                                         \
        look((uintptr_t)p, n, true, __builtin_return_address(0));                                  \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void
emulator_reads(const void *p, size_t n)
{
    look((uintptr_t)p, n, false, NULL);
}

void
emulator_writes(const void *p, size_t n)
{
    look((uintptr_t)p, n, true, NULL);
}

void
emulator_aligned(const void *p, size_t n)
{
    if ((uintptr_t)p % n)
        misaligned(p, n, NULL);
}

void *
emulator_copy(void *to, const void *from, size_t n)
{
    look((uintptr_t)from, n, false, __builtin_return_address(0));
    look((uintptr_t)to, n, true, __builtin_return_address(0));
    return memmove(to, from, n);
}

void *
emulator_fill(void *to, int c, size_t n)
{
    look((uintptr_t)to, n, true, __builtin_return_address(0));
    return memset(to, c, n);
}
