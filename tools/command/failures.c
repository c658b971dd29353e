/* SPDX-License-Identifier: MIT */
/* Reports failed clips, and warnings about clips, with one line per reason instead of one per
 * clip. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "grow.h"
#include "tool.h"

/* More reasons than MOST are only counted. */
enum { LINES = 10, MOST = 256 };
#define ANY_NUMBER '\1' /* stands for a number that differs between clips */

/* Returns the text after the name and its colon; NULL: the text does not begin with the name. */
static const char *
behind(const char *name, const char *words)
{
    const size_t n = strlen(name);
    return !strncmp(words, name, n) && !strncmp(words + n, ": ", 2) ? words + n + 2 : NULL;
}

/* Returns whether two texts differ only in their numbers. `common` becomes the first text, with
 * ANY_NUMBER for each number that differs; it has room for the first text's length. */
static bool
is_same_but_for_numbers(const char *a, const char *b, char *common)
{
    while (*a && *b) {
        const char *const from_a = a, *const from_b = b;
        while (isdigit((unsigned char)*a) || *a == ANY_NUMBER)
            a++;
        while (isdigit((unsigned char)*b))
            b++;
        const size_t n_a = (size_t)(a - from_a), n_b = (size_t)(b - from_b);
        if (!n_a != !n_b || (!n_a && *a != *b))
            return false;
        if (!n_a) {
            *common++ = *a++;
            b++;
        } else if (n_a == n_b && !memcmp(from_a, from_b, n_a)) {
            memcpy(common, from_a, n_a);
            common += n_a;
        } else
            *common++ = ANY_NUMBER;
    }
    *common = 0;
    return *a == *b;
}

void
tool_reasons_add(struct tool_reasons *r, const char *name, const char *words)
{
    char common[sizeof r->at->text];
    const char *own = behind(name, words), *colon = own ? NULL : strstr(words, ": ");
    const char *reason = own ? own : colon ? colon + 2 : words; /* the text may name another file */
    words = own ? own : words;
    for (struct tool_reason *at = r->at; at < r->at + r->n; at++)
        if (is_same_but_for_numbers(at->text, reason, common)) {
            memcpy(at->text, common, strlen(common) + 1);
            at->n++;
            if (strcmp(name, at->name) < 0) /* clips finish in any order */
                snprintf(at->name, sizeof at->name, "%s", name);
            return;
        }
    struct tool_reason *all = r->n < MOST ? qv_grown(r->at, r->n, &r->room, sizeof *all) : NULL;
    if (!all) {
        r->n_others++;
        return;
    }
    r->at = all;
    struct tool_reason *at = &r->at[r->n++];
    at->n = 1;
    snprintf(at->text, sizeof at->text, "%s", reason);
    snprintf(at->first, sizeof at->first, "%s", words);
    snprintf(at->name, sizeof at->name, "%s", name);
}

void
tool_reasons_lose(struct tool_reasons *r, const struct tool_results *to, const char *clip,
                  const char *key, qv_status status, const char *words)
{
    const struct tool_results file = { .json_file = to->failures };
    json_t *j = json_object();
    r->has_records = true;
    if (clip)
        tool_json_add(&j, "clip:t", clip);
    if (key)
        tool_json_add(&j, "key:t", key);
    tool_json_add(&j, "status:s code:s error:t", "failed", qv_status_name(status), words);
    if (to->json) /* a lost record does no harm: the last record reports a failing file */
        tool_emit_json(to, json_incref(j), NULL);
    if (to->failures)
        tool_emit_json(&file, json_incref(j), &r->lost);
    json_decref(j);
    tool_reasons_add(r, clip ? clip : key, words);
}

static int
by_number(const void *a, const void *b)
{
    const struct tool_reason *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : strcmp(x->name, y->name);
}

void
tool_reasons_tell(struct tool_reasons *r, const struct tool_results *to)
{
    const size_t shown = r->n + (r->n_others > 0) < LINES ? r->n : LINES - 2;
    bool hides = r->n_others > 0;
    if (r->n)
        qsort(r->at, r->n, sizeof *r->at, by_number);
    for (size_t i = 0; i < r->n; i++) {
        struct tool_reason *at = &r->at[i];
        hides = hides || at->n > 1;
        for (char *c = at->text; *c; c++)
            *c = (char)(*c == ANY_NUMBER ? 'N' : *c);
        if (i >= shown)
            r->n_others += at->n;
        else if (at->n > 1)
            tool_complain("%s and %lld more: %s", at->name, (long long)at->n - 1, at->text);
        else
            tool_complain("%s: %s", at->name, at->first);
    }
    if (*r->lost.text)
        tool_complain("%s", r->lost.text);
    if (r->n_others)
        tool_complain("%lld more clips, for other reasons", (long long)r->n_others);
    if (hides && r->has_records && !to->failures && !to->json)
        tool_complain("--failures FILE writes one line per failed clip");
    free(r->at);
    *r = (struct tool_reasons){ .n = 0 };
}
