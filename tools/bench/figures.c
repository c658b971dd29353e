/* SPDX-License-Identifier: MIT */
#include "figures.h"

/* The largest accepted ratio of two measurements of a rate, so also how far a share may exceed 1;
 * and the largest accepted scatter of times. */
#define AGREEMENT 1.05
#define SCATTER 1.03

static const char unknown[] = "the roofline is unknown";
static const char above[] = "it is faster than the roofline, which was measured too low";
static const char below[] = "it is faster than its bound, which was measured too slow";

struct bench_rate
bench_rate_of(const double *per_s, int n)
{
    double first = 0, second = 0;
    for (int i = 0; i < n; i++)
        if (per_s[i] > first) {
            second = first;
            first = per_s[i];
        } else if (per_s[i] > second) {
            second = per_s[i];
        }
    return (struct bench_rate){ first, first > 0 && first <= AGREEMENT * second };
}

static struct bench_figure
withhold(const char *why)
{
    return (struct bench_figure){ .withheld = why };
}

struct bench_figure
bench_share(const struct bench_roof *roof, double flops, double bytes, bool streams, double ms)
{
    const double seconds = ms * 1e-3;
    const bool needs_flops = flops > 0 && roof->flops.per_s > 0,
               needs_bytes = bytes > 0 && roof->bytes.per_s > 0;
    if ((needs_flops && !roof->flops.known) || (needs_bytes && !roof->bytes.known))
        return withhold(unknown);
    if (!(seconds > 0))
        return (struct bench_figure){ 0 };
    double least_s = needs_flops ? flops / roof->flops.per_s : 0;
    const double moving_s = needs_bytes ? bytes / roof->bytes.per_s : 0;
    if (moving_s > least_s && (streams || moving_s <= AGREEMENT * seconds))
        least_s = moving_s;
    if (least_s > AGREEMENT * seconds)
        return withhold(above);
    return (struct bench_figure){ .value = least_s < seconds ? least_s / seconds : 1 };
}

struct bench_figure
bench_by_rate(double value, struct bench_rate rate)
{
    const struct bench_figure figure = { .value = value };
    return rate.known ? figure : withhold(unknown);
}

struct bench_figure
bench_over(double ms, double bound_ms, bool known)
{
    if (!known)
        return withhold(unknown);
    if (!(bound_ms > 0) || SCATTER * ms < bound_ms)
        return withhold(below);
    return (struct bench_figure){ .value = ms > bound_ms ? ms / bound_ms : 1 };
}

struct bench_figure
bench_beyond_ms(double ms, double bound_ms)
{
    const struct bench_figure over = bench_over(ms, bound_ms, true);
    if (over.withheld)
        return over;
    return (struct bench_figure){ .value = ms > bound_ms ? ms - bound_ms : 0 };
}

double
bench_rest_s(const double *first_ms, int n, int64_t repeats)
{
    double ms = 0;
    for (int i = 0; i < n; i++) {
        const double least = BENCH_LEAST_MS * (double)repeats, all = first_ms[i] * (double)repeats,
                     wanted = all > least ? all : least, most = BENCH_MOST_MS + first_ms[i];
        ms += wanted < most ? wanted : most;
    }
    return ms * 1e-3;
}

double
bench_scatter(double median_ms, double p90_ms)
{
    const double far = 1.5, clock_ms = 0.02; /* below this the clocks themselves differ */
    return p90_ms > far * median_ms && p90_ms - median_ms > clock_ms ? p90_ms / median_ms : 0;
}
