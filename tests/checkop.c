/* SPDX-License-Identifier: MIT */
/*
 * checkop tries every operation of a backend against ref. Exit codes: 0 all correct, 1 something is
 * wrong, 2 wrong usage, 4 unknown backend or no device.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkop.h"
#include "op_parse.h"

enum { EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_DEVICE = 4 };
enum { MOST_REASONS = 32, MOST_SHAPES_LINE = OP_TEXT, MOST_CHOICE = 7 };

static const char usage[] =
    "usage: checkop [options]\n"
    "  --backend NAME   check this backend (default: every built-in one except ref)\n"
    "  --op 'TEXT'      one operation: 'gemm m=5 n=7 k=9 alpha=1 dtype=f32'\n"
    "  --shapes FILE    operations, one per line; # begins a comment\n"
    "  --count N        random operations of each kind (default 60; 0 with --op or --shapes)\n"
    "  --seed N         of shapes and data (default 1)\n"
    "  --threads N      for backends that have threads (default 0: every core)\n"
    "  --choice N       of Metal's kernels, from 0; operations with fewer kernels are skipped\n"
    "  --naive OPS      operations (gemm,norm or all) on simple kernels\n"
    "  --selftest       plant faults that must be found (default backend: ref)\n";

struct options {
    const char *backend, *op, *shapes, *naive;
    int64_t seed, count, threads, choice;
    bool selftest, help;
};

struct reason {
    char text[200];
    int n;
};

/* The outcomes of one backend. */
struct report {
    const struct options *options;
    const struct side *ref, *side;
    struct family families[QV_OP_COUNT][FILL_COUNT];
    struct reason reasons[MOST_REASONS];
    int n_reasons;
};

struct ops {
    struct qv_op *ops;
    size_t n, capacity;
};

/* ---- a crash says which case it was ---------------------------------------------------------- */

static char repro[OP_TEXT + 200];

static void
write_repro(const struct report *report, const struct qv_op *op)
{
    char text[OP_TEXT], threads[40] = "", choice[40] = "";
    if (report->options->threads)
        snprintf(threads, sizeof threads, " --threads %lld", (long long)report->options->threads);
    if (report->options->choice)
        snprintf(choice, sizeof choice, " --choice %lld", (long long)report->options->choice);
    const char *naive = report->options->naive;
    snprintf(repro, sizeof repro, "checkop --backend %s --seed %lld%s%s%s%s --op '%s'",
             report->side->backend->name, (long long)report->options->seed, threads, choice,
             naive ? " --naive " : "", naive ? naive : "", qv_op_print(op, text, sizeof text));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(_WIN32)
static void
crashed(int number)
{
    /* printing here is unsafe in a signal handler, but there is nothing to lose */
    fprintf(stderr, "\nFAILED signal %d\n  %s\n", number, repro);
    signal(number, SIG_DFL);
    raise(number);
}

static void
watch_crashes(void)
{
    signal(SIGSEGV, crashed);
    signal(SIGFPE, crashed);
    signal(SIGILL, crashed);
    signal(SIGABRT, crashed);
}
#else
static void
watch_crashes(void)
{
}
#endif

/* ---- output ---------------------------------------------------------------------------------- */

static const char *const fill_names[FILL_COUNT] = { "exact", "real" };

static void
count_reason(struct report *report, const struct outcome *outcome)
{
    int i = 0;
    while (i < report->n_reasons &&
           strncmp(report->reasons[i].text, outcome->text, sizeof report->reasons[i].text - 1))
        i++;
    if (i == MOST_REASONS)
        i--;
    else if (i == report->n_reasons) {
        snprintf(report->reasons[i].text, sizeof report->reasons[i].text, "%.199s", outcome->text);
        report->n_reasons++;
    }
    report->reasons[i].n++;
}

/* Prints one backend's table. Returns true if everything is right. */
static bool
summarize(const struct report *report)
{
    struct family all = { 0 };
    bool ok = true;
    printf("%-10s %-6s %8s %8s %8s %10s\n", report->side->backend->name, "fill", "passed", "failed",
           "skipped", "mistrusted");
    for (int kind = 0; kind < QV_OP_COUNT; kind++)
        for (int fill = 0; fill < FILL_COUNT; fill++) {
            const struct family *f = &report->families[kind][fill];
            all.passed += f->passed;
            all.failed += f->failed;
            all.skipped += f->skipped;
            all.mistrusted += f->mistrusted;
            ok = ok && family_ok(f);
            if (f->passed || f->failed || f->skipped || f->mistrusted)
                printf("%-10s %-6s %8d %8d %8d %10d%s\n", qv_op_name((enum qv_op_kind)kind),
                       fill_names[fill], f->passed, f->failed, f->skipped, f->mistrusted,
                       !f->failed && !family_ok(f) ? "  proves nothing" : "");
        }
    for (int i = 0; i < report->n_reasons; i++)
        printf("skipped %d: %s\n", report->reasons[i].n, report->reasons[i].text);
    if (!all.passed) {
        fprintf(stderr, "%s: no case passed\n", report->side->backend->name);
        ok = false;
    }
    printf("%s: %s: %d passed, %d failed, %d skipped, %d mistrusted; seed %lld\n",
           report->side->backend->name, ok ? "ok" : "FAILED", all.passed, all.failed, all.skipped,
           all.mistrusted, (long long)report->options->seed);
    return ok;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void
run_case(struct report *report, const struct check_case *one)
{
    write_repro(report, &one->op);
    struct outcome outcome = judge(report->ref, report->side, one);
    family_add(&report->families[one->op.kind][one->fill], &outcome);
    if (outcome.skipped && !outcome.check)
        count_reason(report, &outcome);
    if (outcome.check)
        printf("FAILED %s (%s%s): %s\n  %s\n", check_names[outcome.check], fill_names[one->fill],
               one->alias ? ", residual is y" : "", outcome.text, repro);
    fflush(stdout);
}

static void
run_op(struct report *report, const struct qv_op *op)
{
    for (int fill = 0; fill < FILL_COUNT; fill++)
        for (int alias = 0;
             alias <= can_alias(report->side, op) && fill_possible(op, (enum fill)fill); alias++)
            run_case(report, &(struct check_case){ *op, (enum fill)fill, alias,
                                                   (uint64_t)report->options->seed });
}

static void
add_op(struct ops *ops, const struct qv_op *op)
{
    if (ops->n == ops->capacity) {
        ops->capacity = ops->capacity ? 2 * ops->capacity : 64;
        ops->ops = realloc(ops->ops, ops->capacity * sizeof *ops->ops);
        if (!ops->ops)
            abort();
    }
    ops->ops[ops->n++] = *op;
}

static bool
add_text(struct ops *ops, const char *text, const char *where, int line)
{
    qv_error err = { 0 };
    struct qv_op op;
    if (qv_op_parse(text, &op, &err) || qv_op_check(&op, &err)) {
        fprintf(stderr, "checkop: %s:%d: %s\n", where, line, err.text);
        return false;
    }
    add_op(ops, &op);
    return true;
}

static bool
add_file(struct ops *ops, const char *path)
{
    char text[MOST_SHAPES_LINE];
    bool ok = true;
    FILE *f = fopen(path, "r");
    if (!f) {
        fprintf(stderr, "checkop: %s cannot be opened\n", path);
        return false;
    }
    for (int line = 1; ok && fgets(text, sizeof text, f); line++) {
        text[strcspn(text, "#\n")] = 0;
        if (text[strspn(text, " \t\r")])
            ok = add_text(ops, text, path, line);
    }
    fclose(f);
    return ok;
}

static void
add_random(struct ops *ops, int64_t seed, int64_t count)
{
    for (int kind = 0; kind < QV_OP_COUNT; kind++) {
        struct rng rng = rng_make((uint64_t)seed, qv_op_name((enum qv_op_kind)kind));
        for (int64_t i = 0; i < count; i++) {
            struct qv_op op = random_op((enum qv_op_kind)kind, &rng);
            qv_error err = { 0 };
            if (qv_op_check(&op, &err)) {
                fprintf(stderr, "checkop: a random operation is not legal: %s\n", err.text);
                abort();
            }
            add_op(ops, &op);
        }
    }
}

/* ---- backends -------------------------------------------------------------------------------- */

static bool
open_side(const struct qv_backend *backend, const struct options *options, struct side *out)
{
    qv_error err = { 0 };
    struct qv_device_options device = { .threads = (int)options->threads };
    *out = (struct side){ .choice = (int)options->choice };
    if (qv_op_parse_kinds(options->naive, &device.naive, &err)) {
        fprintf(stderr, "checkop: --naive: %s\n", err.text);
        return false;
    }
    if (backend->open(&device, &out->dev, &err)) {
        fprintf(stderr, "checkop: %s: %s\n", backend->name, err.text);
        return false;
    }
    out->backend = out->dev->backend;
    out->backend->caps(out->dev, &out->caps);
    if (device.naive && !out->caps.has_naive) {
        fprintf(stderr, "checkop: --naive: backend %s has no simple kernels\n", backend->name);
        out->backend->close(out->dev);
        return false;
    }
    return true;
}

static int
check_backend(const struct side *ref, const struct qv_backend *backend,
              const struct options *options, const struct ops *ops)
{
    struct side side;
    if (!open_side(backend, options, &side))
        return EXIT_DEVICE;
    struct report report = { .options = options, .ref = ref, .side = &side };
    printf("%s: %s; %zu operations, seed %lld\n", backend->name, side.caps.device, ops->n,
           (long long)options->seed);
    for (size_t i = 0; i < ops->n; i++)
        run_op(&report, &ops->ops[i]);
    bool ok = summarize(&report);
    side.backend->close(side.dev);
    return ok ? 0 : EXIT_WRONG;
}

static int
check_all(const struct side *ref, const struct options *options, const struct ops *ops)
{
    int n = 0, result = 0;
    for (const struct qv_backend *const *b = qv_backends; *b; b++) {
        bool wanted = options->backend ? !strcmp((*b)->name, options->backend)
                                       : strcmp((*b)->name, "ref") != 0;
        if (!wanted)
            continue;
        int one = check_backend(ref, *b, options, ops);
        result = one > result ? one : result;
        n++;
    }
    if (!n)
        fprintf(stderr, "checkop: only ref is built in; --backend ref checks ref\n");
    return n ? result : EXIT_DEVICE;
}

static int
run_selftest(const struct side *ref, const struct options *options)
{
    struct side base;
    const char *name = options->backend ? options->backend : "ref";
    if (!open_side(qv_backend_find(name), options, &base))
        return EXIT_DEVICE;
    int result = selftest(ref, &base);
    base.backend->close(base.dev);
    return result ? EXIT_WRONG : 0;
}

/* ---- command line ---------------------------------------------------------------------------- */

static bool
parse_number(const char *text, int64_t most, int64_t *out)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || value < 0 || value > most)
        return false;
    *out = value;
    return true;
}

static bool
parse_options(int argc, char **argv, struct options *o)
{
    const struct {
        const char *name;
        const char **text;
        int64_t *number;
        bool *flag;
        int64_t most;
    } table[] = {
        { "--backend", &o->backend, NULL, NULL, 0 },
        { "--op", &o->op, NULL, NULL, 0 },
        { "--shapes", &o->shapes, NULL, NULL, 0 },
        { "--naive", &o->naive, NULL, NULL, 0 },
        { "--seed", NULL, &o->seed, NULL, INT64_MAX },
        { "--count", NULL, &o->count, NULL, 1000000 },
        { "--threads", NULL, &o->threads, NULL, 1024 },
        { "--choice", NULL, &o->choice, NULL, MOST_CHOICE },
        { "--selftest", NULL, NULL, &o->selftest, 0 },
        { "--help", NULL, NULL, &o->help, 0 },
    };
    enum { N = sizeof table / sizeof table[0] };
    for (int i = 1; i < argc; i++) {
        int at = 0;
        while (at < N && strcmp(table[at].name, argv[i]))
            at++;
        if (at == N || (!table[at].flag && i + 1 == argc)) {
            fprintf(stderr, "checkop: %s %s\n%s", argv[i],
                    at == N ? "is not an option" : "needs a value", usage);
            return false;
        }
        if (table[at].flag)
            *table[at].flag = true;
        else if (table[at].text)
            *table[at].text = argv[++i];
        else if (!parse_number(argv[++i], table[at].most, table[at].number)) {
            fprintf(stderr, "checkop: %s %s: not a number from 0 to %lld\n", table[at].name,
                    argv[i], (long long)table[at].most);
            return false;
        }
    }
    return true;
}

static bool
collect(const struct options *options, struct ops *ops)
{
    bool ok = true;
    if (options->op)
        ok = add_text(ops, options->op, "--op", 1);
    if (ok && options->shapes)
        ok = add_file(ops, options->shapes);
    int64_t count = options->op || options->shapes ? 0 : 60;
    if (ok)
        add_random(ops, options->seed, options->count >= 0 ? options->count : count);
    return ok;
}

int
main(int argc, char **argv)
{
    struct options options = { .seed = 1, .count = -1 };
    struct ops ops = { 0 };
    struct side ref;
    if (!parse_options(argc, argv, &options))
        return EXIT_USAGE;
    if (options.help)
        return fputs(usage, stdout) < 0;
    if (options.backend && !qv_backend_find(options.backend)) {
        fprintf(stderr, "checkop: backend '%s' is not built in\n", options.backend);
        return EXIT_DEVICE;
    }
    if (!open_side(&qv_backend_ref, &(struct options){ 0 }, &ref))
        return EXIT_DEVICE;
    watch_crashes();
    int result = EXIT_USAGE;
    if (options.selftest)
        result = run_selftest(&ref, &options);
    else if (collect(&options, &ops))
        result = check_all(&ref, &options, &ops);
    free(ops.ops);
    ref.backend->close(ref.dev);
    return result;
}
