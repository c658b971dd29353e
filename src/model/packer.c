/* SPDX-License-Identifier: MIT */
#include "packer.h"

#include <string.h>

#include "numbers.h"

static void
take_out(qv_capacity *left, const qv_capacity *pair, int64_t n)
{
    left->patches -= n * pair->patches;
    left->segments -= n * pair->segments;
    left->windows -= n * pair->windows;
}

/* Takes as many of the oldest pairs as fit, then of the largest that still fit. Returns the room
 * that is left in the chunk. */
static qv_capacity
take_largest(const qv_capacity *chunk, const struct qv_pack_run *waiting, size_t n,
             int64_t taken[QV_FEEDER_PIECES])
{
    qv_capacity left = *chunk;
    for (size_t best = 0; best < n;) {
        const struct qv_pack_run *run = &waiting[best];
        const int64_t fit = qv_capacity_fits(&left, &run->pair);
        taken[best] = fit < run->pairs ? fit : run->pairs;
        take_out(&left, &run->pair, taken[best]);
        best = n;
        for (size_t i = 0; i < n; i++)
            if (!taken[i] && qv_capacity_fits(&left, &waiting[i].pair) &&
                (best == n || waiting[i].pair.patches > waiting[best].pair.patches))
                best = i;
    }
    return left;
}

/* How each sum of rows is reached. Rows are counted in grains; a chunk has up to
 * QV_MOST_SUMS. */
enum { NO_RUN = -1 };
struct sums {
    int64_t grain, most;
    int16_t last[QV_MOST_SUMS + 1]; /* the run added last; NO_RUN: the sum is not reached */
    int16_t n[QV_MOST_SUMS + 1];    /* of that run in the sum */
};

static int64_t
grains_of(const struct sums *s, const struct qv_pack_run *run)
{
    return qv_ceil_div(run->pair.patches, s->grain);
}

/* Finds the sums of rows that the pairs of all runs but the first can make, up to pairs[run] of
 * each. pairs[run] is 0 for a run that is like an older one. Returns the largest sum. */
static int64_t
find_sums(struct sums *s, const struct qv_pack_run *waiting, const int64_t *pairs, size_t n)
{
    int64_t best = 0;
    for (int64_t at = 1; at <= s->most; at++)
        s->last[at] = NO_RUN;
    s->last[0] = 0;
    for (size_t i = 1; i < n && best < s->most; i++) {
        const int64_t grains = grains_of(s, &waiting[i]);
        for (int64_t at = grains; pairs[i] && at <= s->most; at++) {
            const int64_t from = at - grains;
            const int before = s->last[from] == (int16_t)i ? s->n[from] : 0;
            if (s->last[at] != NO_RUN || s->last[from] == NO_RUN || before == pairs[i])
                continue;
            s->last[at] = (int16_t)i;
            s->n[at] = (int16_t)(before + 1);
            best = at > best ? at : best;
        }
    }
    return best;
}

/* Fills the room that the oldest pairs leave with the pairs that leave least of it empty, if they
 * leave less than `rows` empty and the chunk has room for their segments. Of two runs that are
 * alike the older is taken. */
static void
take_best(const qv_capacity *chunk, const struct qv_pack_run *waiting, size_t n, int64_t rows,
          int64_t taken[QV_FEEDER_PIECES])
{
    struct sums s;
    int64_t pairs[QV_FEEDER_PIECES] = { 0 };
    size_t like[QV_FEEDER_PIECES]; /* the oldest that each run is like */
    qv_capacity left = *chunk;
    take_out(&left, &waiting[0].pair, taken[0]);
    s.grain = left.patches / (QV_MOST_SUMS + 1) + 1;
    s.most = left.patches / s.grain;
    for (size_t i = 1; i < n; i++) {
        for (like[i] = 1; !qv_capacity_equal(&waiting[like[i]].pair, &waiting[i].pair);)
            like[i]++;
        const int64_t all = pairs[like[i]] + waiting[i].pairs;
        pairs[like[i]] = all < s.most ? all : s.most;
    }
    int64_t at = find_sums(&s, waiting, pairs, n);
    memset(pairs, 0, sizeof pairs);
    for (; at; at -= grains_of(&s, &waiting[s.last[at]])) {
        take_out(&left, &waiting[s.last[at]].pair, 1);
        pairs[s.last[at]]++;
    }
    if (left.patches >= rows || left.segments < 0 || left.windows < 0)
        return;
    for (size_t i = 1; i < n; i++) {
        taken[i] = pairs[like[i]] < waiting[i].pairs ? pairs[like[i]] : waiting[i].pairs;
        pairs[like[i]] -= taken[i];
    }
}

size_t
qv_pack_choose(const qv_capacity *chunk, const struct qv_pack_run *waiting, size_t n,
               int64_t taken[QV_FEEDER_PIECES])
{
    size_t used = 0;
    n = n < QV_FEEDER_PIECES ? n : QV_FEEDER_PIECES;
    memset(taken, 0, QV_FEEDER_PIECES * sizeof *taken);
    const qv_capacity left = take_largest(chunk, waiting, n, taken);
    if (n > 1 && left.patches > chunk->patches / QV_WORTH_A_SEARCH)
        take_best(chunk, waiting, n, left.patches, taken);
    for (size_t i = 0; i < n; i++)
        used += taken[i] > 0;
    return used;
}
