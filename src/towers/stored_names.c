/* SPDX-License-Identifier: MIT */
/* Finds the tower among a checkpoint's names, whatever the programs that save models put in front
 * of them and between their words. */
#include "stored_tensor.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "grow.h"

/* Words that torch.compile, DistributedDataParallel, FSDP, activation checkpointing and Lightning
 * put into names. They mean nothing, wherever they stand. */
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

/* Returns a name as transformers has it, in `scratch`: without wrappers' words, and with the patch
 * embedding called proj, not linear_proj. NULL if out of memory. */
static char *
plain_name(const char *name, struct qv_text *scratch)
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

/* Returns the last words of a text that are a name of the family or, unless `whole`, the first
 * words of one; NULL if there are none. */
static const char *
own_part(const struct qv_stored_tower *in, const char *text, bool whole)
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
    const char *plain = plain_name(name, scratch);
    const size_t n = strlen(in->prefix);
    return plain && !strncmp(plain, in->prefix, n) ? plain + n : NULL;
}

/* ---- the tower's names ----------------------------------------------------------------------- */

/* A tensor whose name ends in one of the family's. */
struct entry {
    const char *prefix, *in_file;
    size_t prefix_at; /* the prefix's place in struct search's text */
    struct qv_stored_name *own;
};

struct search {
    struct qv_stored_tower *in;
    struct qv_text scratch;
    struct entry *entries;
    size_t n, room;
    bool lost; /* out of memory */
};

static qv_status
list_own_names(struct qv_stored_tower *in, const struct qv_tower *tower, qv_error *err)
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

static void
see_own(void *user, const char *name)
{
    struct search *s = user;
    const char *plain = s->lost ? NULL : plain_name(name, &s->scratch);
    const char *own = plain ? own_part(s->in, plain, true) : NULL;
    struct entry *grown = own ? qv_grown(s->entries, s->n, &s->room, sizeof *grown) : s->entries;
    s->lost |= s->scratch.lost || (own && !grown);
    if (s->lost || !own)
        return;
    s->entries = grown;
    grown[s->n++] = (struct entry){ .in_file = name,
                                    .prefix_at = s->in->prefixes.n,
                                    .own = qv_stored_own(s->in, own) };
    qv_text_add(&s->in->prefixes, plain, (size_t)(own - plain));
    qv_text_add(&s->in->prefixes, "", 1);
    s->lost |= s->in->prefixes.lost;
}

static int
by_prefix(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const int order = strcmp(x->prefix, y->prefix);
    if (order || x->own != y->own)
        return order ? order : x->own < y->own ? -1 : 1;
    return strcmp(x->in_file, y->in_file);
}

/* The entries below one prefix. */
struct group {
    const struct entry *first, *end;
    size_t n_own; /* how many of the family's names it has; 0: not the patch embedding's */
};

static struct group
next_group(const struct search *s, const struct entry *first, const char *patch_embed)
{
    struct group g = { first, first, 0 };
    bool embeds = false;
    for (; g.end < s->entries + s->n && !strcmp(g.end->prefix, first->prefix); g.end++) {
        g.n_own += g.end == first || g.end->own != g.end[-1].own;
        embeds |= !strcmp(g.end->own->name, patch_embed);
    }
    g.n_own = embeds ? g.n_own : 0;
    return g;
}

/* Reads all values of a stored tensor's rows [row, row + rows) as f32. */
static qv_status
read_widened(const struct qv_stored_tensor *t, int64_t row, int64_t rows,
             const struct qv_stored_room *room, float *out, qv_error *err)
{
    void *values;
    const qv_status status = qv_stored_read(t, row, rows, room, &values, err);
    if (!status)
        qv_convert(values, t->dtype, out, QV_F32, rows * t->k);
    return status;
}

/* Compares two stored tensors of the same shape. */
static qv_status
compare_values(const struct qv_stored_tensor *a, const struct qv_stored_tensor *b, int64_t rows,
               bool *same, qv_error *err)
{
    const size_t a_row = qv_stored_row_bytes(a), b_row = qv_stored_row_bytes(b);
    const size_t row_bytes = a_row > b_row ? a_row : b_row, values = (size_t)a->k * sizeof(float);
    const int64_t fit = (1 << 20) / (int64_t)(row_bytes + values), step = fit ? fit : 1;
    const size_t bytes = (size_t)step * row_bytes;
    char *raw = malloc(2 * bytes);
    float *x = malloc(2 * (size_t)step * values), *y = x ? x + step * a->k : NULL;
    qv_status status =
        raw && x ? QV_OK : qv_fail(err, QV_ENOMEM, "no memory for rows of %zu bytes", bytes);
    const struct qv_stored_room room = { raw, raw ? raw + bytes : NULL, bytes };
    *same = true;
    for (int64_t row = 0; row < rows && *same && !status; row += step) {
        const int64_t n = rows - row < step ? rows - row : step;
        status = read_widened(a, row, n, &room, x, err);
        if (!status)
            status = read_widened(b, row, n, &room, y, err);
        *same = !status && !memcmp(x, y, (size_t)n * values);
    }
    free(raw);
    free(x);
    return status;
}

/* Compares the tensor of a name with another one of the same name, which differs also if it cannot
 * be the tower's. */
static qv_status
compare_tensors(struct qv_stored_tower *in, const struct qv_config *config, const struct entry *e,
                bool *same, qv_error *err)
{
    struct qv_stored_tensor a, b;
    struct qv_stored_name *own = e->own;
    const char *const chosen = own->in_file;
    qv_status status = qv_stored_find(in, config, own->spec, own->i, &a, err);
    if (status)
        return status;
    own->in_file = e->in_file;
    status = qv_stored_find(in, config, own->spec, own->i, &b, err);
    own->in_file = chosen;
    *same = false;
    if (status)
        return status == QV_EFORMAT || status == QV_EUNSUPPORTED ? QV_OK : status;
    return compare_values(&a, &b, own->spec->n, same, err);
}

/* Checks that all towers that are complete have the same values. */
static qv_status
compare_towers(const struct search *s, const struct qv_config *config, const char *patch_embed,
               qv_error *err)
{
    qv_status status = QV_OK;
    struct group g = { 0 };
    for (const struct entry *at = s->entries; at < s->entries + s->n; at = g.end) {
        g = next_group(s, at, patch_embed);
        for (const struct entry *e = g.first; e < g.end && g.n_own == s->in->n_names; e++) {
            bool same = true;
            if (e->in_file != e->own->in_file)
                status = compare_tensors(s->in, config, e, &same, err);
            if (!status && !same)
                status = qv_fail(err, QV_EFORMAT,
                                 "%s: there are two vision towers with different values, %.200s "
                                 "and %.200s: which one is meant? Save the checkpoint with one",
                                 qv_path_tail(s->in->dir), e->own->in_file, e->in_file);
            if (status)
                return status;
        }
    }
    return QV_OK;
}

/* Chooses the prefix that has most of the family's names. */
static qv_status
choose(const struct search *s, const struct qv_config *config, const char *patch_embed,
       qv_error *err)
{
    struct group best = { 0 }, g;
    for (const struct entry *at = s->entries; at < s->entries + s->n; at = g.end) {
        g = next_group(s, at, patch_embed);
        best = g.n_own > best.n_own ? g : best;
    }
    if (!best.n_own)
        return qv_stored_missing(s->in, NULL, patch_embed, err);
    s->in->prefix = best.first->prefix;
    for (const struct entry *e = best.end; e-- > best.first;) /* the first of several is taken */
        e->own->in_file = e->in_file;
    return compare_towers(s, config, patch_embed, err);
}

qv_status
qv_stored_find_names(struct qv_stored_tower *in, const struct qv_config *config,
                     const struct qv_tower *tower, qv_error *err)
{
    const char *patch_embed = tower->tensors[tower->patch_embed.weight].names[0];
    struct search s = { .in = in };
    qv_status status = list_own_names(in, tower, err);
    if (status)
        return status;
    qv_checkpoint_visit(in->checkpoint, see_own, &s);
    for (size_t i = 0; i < s.n && !s.lost; i++)
        s.entries[i].prefix = in->prefixes.at + s.entries[i].prefix_at;
    if (s.lost) {
        status = qv_no_memory(in->dir, err);
    } else {
        if (s.n)
            qsort(s.entries, s.n, sizeof *s.entries, by_prefix);
        status = choose(&s, config, patch_embed, err);
    }
    free(s.entries);
    free(s.scratch.at);
    return status;
}

/* ---- what is there instead ------------------------------------------------------------------- */

/* Words in the names of tensors that stand in a weight's place, and who writes them. NULL: PEFT,
 * for adapters beside the weights, or around them. */
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

/* Finds the first marker among a plain name's words, and ends the name in front of it. */
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

/* A look through the names for what explains that one is missing. A name with a marker explains
 * more than one below another prefix, and that more than a similar name. */
enum reason { NOTHING, SIMILAR, ELSEWHERE, MARKED };
struct look {
    const struct qv_stored_tower *in;
    const char *missing; /* NULL: none */
    struct qv_text scratch;
    enum reason reason;
    size_t marker, likeness, n_adapters;
    const char *name; /* the name in the checkpoint that explains it best */
};

/* Returns how many characters two names share at their beginnings and ends; 0 unless the first
 * name's layer has the second one. */
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
    char *plain = plain_name(name, &l->scratch);
    if (!plain)
        return;
    const size_t marker = cut_at_marker(plain), prefix = strlen(in->prefix);
    const bool marked = marker < NO_MARKER;
    const char *own = own_part(in, plain, !marked), *tail = own ? own : plain;
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

/* Reads who quantised a checkpoint from its config.json; "" if that does not say. */
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
    const char *dir = qv_path_tail(in->dir);
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
                 "no tensor's name ends in %s: this checkpoint holds no Qwen-VL vision tower",
                 name);
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
                 "%s: adapters are not merged, so tokens are the base model's: %.140s is not used "
                 "(tensors of adapters: %zu); merge them (PEFT's merge_and_unload) and save the "
                 "model",
                 qv_path_tail(in->dir), l.name, l.n_adapters);
    qv_make_printable(text);
}
