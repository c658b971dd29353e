/* SPDX-License-Identifier: MIT */
/* Fuzzes a list of clips as `encode --list` and `cache fill --list` read it. A list that is
 * accepted must hold what list.h promises. */
#include <math.h>

#include "fuzz.h"
#include "list.h"
#include "path.h"

/* Checks that numbers are finite and not negative: every number of a line goes to a decoder as it
 * is. */
static void
check_own(const qv_clip_options *own)
{
    QVM_EACH_OPTION (p) {
        FUZZ_CHECK(isfinite(qvm_option_real(p, own)) && qvm_option_real(p, own) >= 0);
        FUZZ_CHECK(p->row || !(qvm_option_real(p, own) != 0));
    }
    FUZZ_CHECK(!(own->end_s > 0) || own->end_s > own->start_s);
}

static void
check_entry(const struct tool_entry *entry, size_t line_before)
{
    static const qv_clip_options all = { .num_frames = 3, .max_frames = 5, .max_pixels = 7 };
    FUZZ_CHECK(entry->path && *entry->path && entry->key && *entry->key);
    FUZZ_CHECK(entry->line > line_before && strncmp(entry->key, "__", 2));
    char *text = qv_utf8_text(entry->key);
    FUZZ_CHECK(text && !strcmp(text, entry->key)); /* A key is UTF-8. */
    free(text);
    if (entry->own)
        check_own(entry->own);
    const qv_clip_options o = qvm_options_merge(entry->own, &all);
    FUZZ_CHECK(!(o.fps > 0 && o.num_frames)); /* These two exclude each other. */
    FUZZ_CHECK(o.max_frames > 0 && o.max_pixels > 0 &&
               o.length == (entry->own ? entry->own->length : 0));
}

static int
by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void
check_keys(const struct tool_list *list)
{
    const char **keys = calloc(list->n + 1, sizeof *keys);
    FUZZ_CHECK(keys);
    for (size_t i = 0; i < list->n; i++)
        keys[i] = list->at[i].key;
    qsort(keys, list->n, sizeof *keys, by_text);
    for (size_t i = 1; i < list->n; i++)
        FUZZ_CHECK(strcmp(keys[i - 1], keys[i]));
    free(keys);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qv_error err;
    struct tool_list list = { 0 };
    const char *file = fuzz_file("clips.txt", data, size);
    if (!fuzz_failed(tool_list_read(file, &list, &err), &err)) {
        for (size_t i = 0; i < list.n; i++)
            check_entry(&list.at[i], i ? list.at[i - 1].line : 0);
        check_keys(&list);
        fuzz_failed(tool_list_check_files(&list, file, &err), &err);
    }
    tool_list_free(&list);
    return 0;
}
