/* SPDX-License-Identifier: MIT */
/* The names of a checkpoint's tensors, independent of the prefixes and words that saving programs
 * insert. */
#include "stored_tensor.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "grow.h"
#include "path.h"

/* Words that torch.compile, DistributedDataParallel, FSDP, activation checkpointing and Lightning
 * insert into names. They are ignored anywhere in a name. */
static const char *const wrappers[] = { "_orig_mod",       "module",
                                        "_forward_module", "_fsdp_wrapped_module",
                                        "_fpw_module",     "_checkpoint_wrapped_module" };

/* ---- names as text --------------------------------------------------------------------------- */

static bool
is_wrapper(const char *word, size_t n)
{
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        if (strlen(wrappers[i]) == n && !memcmp(word, wrappers[i], n))
            return true;
    return false;
}

char *
qv_stored_plain_name(const char *name, struct qv_text *scratch)
{
    static const char linear_proj[] = "patch_embed.linear_proj.", linear[] = "linear_";
    bool first = true;
    scratch->n = 0;
    for (const char *word = name, *end;; word = end + 1) {
        end = word + strcspn(word, ".");
        if (!is_wrapper(word, (size_t)(end - word))) {
            qv_text_add(scratch, ".", !first);
            qv_text_add(scratch, word, (size_t)(end - word));
            first = false;
        }
        if (!*end)
            break;
    }
    qv_text_add(scratch, "", 1);
    char *at = scratch->lost ? NULL : strstr(scratch->at, linear_proj);
    if (at) {
        at += strcspn(at, ".") + 1;
        memmove(at, at + sizeof linear - 1, strlen(at + sizeof linear - 1) + 1);
    }
    return scratch->lost ? NULL : scratch->at;
}

static int
by_name(const void *a, const void *b)
{
    const struct qv_stored_name *x = a, *y = b;
    return strcmp(x->name, y->name);
}

struct qv_stored_name *
qv_stored_own(const struct qv_stored_tower *in, const char *name)
{
    const struct qv_stored_name key = { .name = name };
    return in->n_names ? bsearch(&key, in->names, in->n_names, sizeof key, by_name) : NULL;
}

/* Compares a text with a name's first words. */
static int
by_first_words(const void *text, const void *b)
{
    const char *name = ((const struct qv_stored_name *)b)->name;
    const size_t n = strlen(text);
    const int order = strncmp(text, name, n);
    return order ? order : name[n] ? '.' - name[n] : 0;
}

const char *
qv_stored_own_part(const struct qv_stored_tower *in, const char *text, bool whole)
{
    const size_t n = strlen(text), most = sizeof in->names->spec->names[0];
    for (const char *at = n > most ? text + n - most : text; *at; at++) {
        const struct qv_stored_name key = { .name = at };
        if ((at == text || at[-1] == '.') &&
            (whole ? bsearch(&key, in->names, in->n_names, sizeof key, by_name)
                   : bsearch(at, in->names, in->n_names, sizeof key, by_first_words)))
            return at;
    }
    return NULL;
}

const char *
qv_stored_below(const struct qv_stored_tower *in, const char *name, struct qv_text *scratch)
{
    const char *plain = qv_stored_plain_name(name, scratch);
    const size_t n = strlen(in->prefix);
    return plain && !strncmp(plain, in->prefix, n) ? plain + n : NULL;
}

qv_status
qv_stored_list_names(struct qv_stored_tower *in, const struct qv_tower *tower, qv_error *err)
{
    in->names = calloc(tower->n * QV_MOST_STORED, sizeof *in->names);
    if (!in->names)
        return qv_fail(err, QV_ENOMEM, "no memory for the names of %zu tensors", tower->n);
    for (const struct qv_tensor_spec *s = tower->tensors; s < tower->tensors + tower->n; s++)
        for (int i = 0; i < s->n_stored; i++)
            in->names[in->n_names++] = (struct qv_stored_name){ s->names[i], NULL, s, i };
    qsort(in->names, in->n_names, sizeof *in->names, by_name);
    return QV_OK;
}

/* ---- what is there instead ------------------------------------------------------------------- */

/* Words in the names of tensors that replace a weight, and the programs that write them. NULL:
 * PEFT, for adapters next to or around the weights. */
static const struct {
    const char *word, *quantised_by;
} markers[] = {
    { "qweight", "AWQ or GPTQ" },
    { "W_q", "HQQ" },
    { "weight_packed", "compressed-tensors" },
    { "_data", "quanto" },
    { "base_layer", NULL },
    { "modules_to_save", NULL },
    { "original_module", NULL },
    { "lora_A", NULL },
    { "lora_B", NULL },
    { "lora_embedding_A", NULL },
    { "lora_magnitude_vector", NULL },
};
enum { NO_MARKER = sizeof markers / sizeof *markers };

/* Finds the first marker among a plain name's words, and truncates the name before it. */
static size_t
cut_at_marker(char *plain)
{
    for (char *word = plain, *end; *word; word = *end ? end + 1 : end) {
        end = word + strcspn(word, ".");
        for (size_t i = 0; i < NO_MARKER && word > plain; i++)
            if (strlen(markers[i].word) == (size_t)(end - word) &&
                !memcmp(markers[i].word, word, (size_t)(end - word))) {
                word[-1] = 0;
                return i;
            }
    }
    return NO_MARKER;
}

/* A search for names that explain why a tensor is missing. A name with a marker is a better
 * explanation than a name below another prefix, which is better than a similar name. */
enum reason { NOTHING, SIMILAR, ELSEWHERE, MARKED };
struct look {
    const struct qv_stored_tower *in;
    const char *missing; /* NULL: none */
    struct qv_text scratch;
    enum reason reason;
    size_t marker, likeness, n_adapters;
    const char *name; /* the name in the checkpoint that explains it best */
};

/* Returns how many characters two names share at their beginnings and ends; 0 unless the second
 * name is in the first one's layer. */
static size_t
likeness_of(const char *missing, const char *name)
{
    const size_t n = strlen(missing), m = strlen(name);
    size_t front = 0, back = 0, layer = n;
    for (int dots = 0; layer && (dots += missing[layer - 1] == '.') < 2;)
        layer--;
    while (front < n && front < m && missing[front] == name[front])
        front++;
    while (back < n - front && back < m - front && missing[n - 1 - back] == name[m - 1 - back])
        back++;
    return front >= layer && front ? front + back : 0;
}

static void
see_reason(void *user, const char *name)
{
    struct look *l = user;
    const struct qv_stored_tower *in = l->in;
    char *plain = qv_stored_plain_name(name, &l->scratch);
    if (!plain)
        return;
    const size_t marker = cut_at_marker(plain), prefix = strlen(in->prefix);
    const bool marked = marker < NO_MARKER;
    const char *own = qv_stored_own_part(in, plain, !marked), *tail = own ? own : plain;
    const size_t before = (size_t)(tail - plain);
    const bool below = !own ? !strncmp(plain, in->prefix, prefix)
                            : before >= prefix && !memcmp(tail - prefix, in->prefix, prefix);
    enum reason reason = NOTHING;
    size_t likeness = 0;
    if (marked && own && below && (l->missing || !markers[marker].quantised_by))
        reason = MARKED;
    else if (!marked && own && l->missing && !strcmp(own, l->missing))
        reason = ELSEWHERE;
    else if (!marked && !own && below)
        reason = SIMILAR;
    if (l->missing && reason > NOTHING)
        likeness = likeness_of(l->missing, own ? own : plain + prefix);
    l->n_adapters += reason == MARKED && !markers[marker].quantised_by;
    if ((reason == SIMILAR && !likeness) || reason < l->reason ||
        (reason == l->reason && likeness <= l->likeness && l->name))
        return;
    l->reason = reason;
    l->likeness = likeness;
    l->marker = marker;
    l->name = name;
}

/* Reads from config.json which method quantised a checkpoint; "" if unknown. */
static void
read_quantiser(const char *dir, char name[QV_QUOTE_SIZE])
{
    static const char *const capitals[][2] = {
        { "awq", "AWQ" }, { "gptq", "GPTQ" }, { "hqq", "HQQ" }, { "fp8", "FP8" }
    };
    char *path = qv_path_join(dir, "config.json");
    json_t *root = NULL;
    *name = 0;
    if (path && !qv_json_read(path, QV_JSON_MAX_CONFIG, &root, NULL)) {
        const char *method = json_string_value(
            json_object_get(json_object_get(root, "quantization_config"), "quant_method"));
        for (size_t i = 0; method && i < sizeof capitals / sizeof *capitals; i++)
            if (!strcmp(method, capitals[i][0]))
                method = capitals[i][1];
        if (method)
            snprintf(name, QV_QUOTE_SIZE, "%.60s", method);
    }
    json_decref(root);
    free(path);
}

qv_status
qv_stored_missing(const struct qv_stored_tower *in, const char *prefix, const char *name,
                  qv_error *err)
{
    const char *dir = in->dir;
    char quantiser[QV_QUOTE_SIZE], what[256];
    struct look l = { .in = in, .missing = name };
    qv_checkpoint_visit(in->checkpoint, see_reason, &l);
    free(l.scratch.at);
    if (l.scratch.lost)
        return qv_no_memory(in->dir, err);
    if (prefix)
        snprintf(what, sizeof what, "no tensor %.140s%s", prefix, name);
    else
        snprintf(what, sizeof what,
                 "no tensor's name ends in %s: this checkpoint has no Qwen-VL vision tower", name);
    if (l.reason == MARKED && !markers[l.marker].quantised_by)
        return qv_fail(err, QV_EFORMAT,
                       "%s: %s, but %.140s: adapters are not merged; merge them into the model "
                       "(PEFT's merge_and_unload) and save it",
                       dir, what, l.name);
    read_quantiser(in->dir, quantiser);
    if (l.reason == MARKED || (*quantiser && prefix))
        return qv_fail(err, QV_EUNSUPPORTED,
                       "%s: %s%s%.140s: quantised by %s (%s); load the checkpoint it was made "
                       "from, or one quantised by MLX or llama.cpp",
                       dir, what, l.name ? ", but " : "", l.name ? l.name : "",
                       *quantiser ? quantiser : markers[l.marker].quantised_by,
                       *quantiser ? "quantization_config.quant_method in config.json"
                                  : "config.json has no quantization_config");
    if (l.reason == ELSEWHERE && prefix)
        return qv_fail(err, QV_EFORMAT,
                       "%s: %s, but %.140s: a tower's names must all have the same prefix", dir,
                       what, l.name);
    return qv_fail(err, QV_EFORMAT, "%s: %s%s%.140s", dir, what,
                   l.reason == SIMILAR ? "; the most similar name is " : "",
                   l.reason == SIMILAR ? l.name : "");
}

void
qv_stored_remark(const struct qv_stored_tower *in, char *text, size_t size)
{
    struct look l = { .in = in };
    *text = 0;
    if (in->checkpoint)
        qv_checkpoint_visit(in->checkpoint, see_reason, &l);
    free(l.scratch.at);
    if (l.n_adapters)
        snprintf(text, size,
                 "%.160s: adapters are not merged, so tokens are the base model's: %.140s is not "
                 "used (tensors of adapters: %zu); merge them (PEFT's merge_and_unload) and save "
                 "the model",
                 in->dir, l.name, l.n_adapters);
    qv_make_printable(text);
}
