/* SPDX-License-Identifier: MIT */
/* Lists a folder's parts, reads their indexes, and records which parts are unusable. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "grow.h"
#include "path.h"
#include "reader.h"

/* The maximum number of listings of a folder whose parts keep changing. */
enum { MOST_ROUNDS = 32 };

/* ---- names ----------------------------------------------------------------------------------- */

static bool
is_part(const char *name)
{
    static const char begin[] = "part-", end[] = ".safetensors";
    const size_t n = strlen(name);
    return n > sizeof begin + sizeof end && !strncmp(name, begin, sizeof begin - 1) &&
           !strcmp(name + n - (sizeof end - 1), end);
}

static int
by_name(const void *a, const void *b)
{
    const struct qv_index_part *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static qv_status
add_part(qv_cache *c, const char *name, size_t *room, qv_error *err)
{
    struct qv_index_part *parts = qv_grown(c->index.parts, c->index.n_parts, room, sizeof *parts);
    if (!parts)
        return qv_no_memory(c->dir, err);
    c->index.parts = parts;
    parts[c->index.n_parts] = (struct qv_index_part){ .path = NULL };
    if (!qv_index_name_part(&parts[c->index.n_parts], c->dir, name))
        return qv_no_memory(c->dir, err);
    c->index.n_parts++;
    return QV_OK;
}

static bool
is_known(const qv_cache *c, const char *name, size_t known)
{
    const struct qv_index_part part = { .name = name };
    return known && bsearch(&part, c->index.parts, known, sizeof part, by_name);
}

/* Adds the folder's parts except for the first `known`, which are sorted; *seen: how many of the
 * known parts still exist. */
static qv_status
list_folder(qv_cache *c, size_t known, size_t *room, size_t *seen, qv_error *err)
{
    *seen = 0;
    DIR *dir = opendir(c->dir);
    if (!dir)
        return qv_fail(err, qv_status_of_errno(errno), "%s: %s", c->dir, strerror(errno));
    qv_status s = QV_OK;
    const struct dirent *e;
    while (!s && (errno = 0, e = readdir(dir)) != NULL)
        if (is_part(e->d_name) && is_known(c, e->d_name, known))
            ++*seen;
        else if (is_part(e->d_name))
            s = add_part(c, e->d_name, room, err);
    if (!s && errno)
        s = qv_fail(err, qv_status_of_errno(errno), "%s: cannot be listed: %s", c->dir,
                    strerror(errno));
    closedir(dir);
    return s;
}

static qv_status
take_names(qv_cache *c, const struct qv_cache_reading *how, size_t *room, qv_error *err)
{
    qv_status s = QV_OK;
    for (size_t i = 0; i < how->n_parts && !s; i++) {
        const char *name = how->parts[i];
        s = is_part(name) && !strchr(name, '/')
                ? add_part(c, name, room, err)
                : qv_fail(err, QV_EINVAL, "%s: %.80s is not the name of a part", c->dir, name);
    }
    return s;
}

/* ---- indexes --------------------------------------------------------------------------------- */

/* Records an unusable part: its keys are missing, and can be computed again. */
static qv_status
note_damage(qv_cache *c, size_t part, enum qv_cache_fault fault, const qv_error *why, qv_error *err)
{
    struct qv_cache_damaged *damage = realloc(c->damage, (c->n_damage + 1) * sizeof *damage);
    if (!damage)
        return qv_no_memory(c->dir, err);
    c->damage = damage;
    c->index.parts[part].damaged = true;
    damage[c->n_damage] =
        (struct qv_cache_damaged){ .words = strdup(why->text), .part = part, .fault = fault };
    if (!damage[c->n_damage].words)
        return qv_no_memory(c->dir, err);
    c->n_damage++;
    return QV_OK;
}

static qv_status
add_rows(qv_cache *c, const struct qv_part_index *from, size_t part, qv_error *err)
{
    const uint64_t row = qv_cache_row_bytes(&c->layout) * (uint64_t)qv_cache_n_tensors(&c->layout);
    struct qv_index_part *p = &c->index.parts[part];
    qv_status status = QV_OK;
    p->head = from->head;
    p->bytes = from->size;
    c->part_bytes += from->size;
    for (size_t i = 0; i < from->head.n_rows && !status; i++) {
        const struct qv_index_row r = qv_part_index_row(from, i);
        p->rows += r.n_rows;
        c->index.bytes += r.n_rows * row + qv_index_small_bytes(&r);
        status = qv_index_add(&c->index, from, i, (uint32_t)part, err);
    }
    return status;
}

/* Reads a part's index. A listed part that no longer exists is gone; a named part that does not
 * exist is damaged. Running out of memory or descriptors, or losing a file server, is not
 * damage. */
static qv_status
read_part(qv_cache *c, struct qv_part_index *p, size_t part, bool is_named, qv_error *err)
{
    struct qv_index_part *known = &c->index.parts[part];
    qv_error why = { 0 };
    const qv_status status = qv_part_index_read(p, known->path, &why);
    known->gone = status && status != QV_ENOMEM && !is_named && !qv_path_exists(known->path);
    if (qv_ends_all(status) && !known->gone) {
        if (err)
            *err = why;
        return status;
    }
    if (!status)
        return add_rows(c, p, part, err);
    c->damaged_bytes += known->bytes = p->size;
    return known->gone
               ? QV_OK
               : note_damage(c, part, status == QV_EIO ? QV_CACHE_UNREADABLE : p->fault, &why, err);
}

/* ---- all parts ------------------------------------------------------------------------------- */

/* A part, compared by by_name, and the number by which keys refer to it. */
struct place {
    struct qv_index_part part;
    uint32_t number;
};

/* Sorts the parts by name, and removes parts that are gone, to which no key refers. */
static qv_status
put_in_order(qv_cache *c, qv_error *err)
{
    struct qv_cache_index *index = &c->index;
    struct place *places = calloc(index->n_parts + 1, sizeof *places);
    uint32_t *numbers = calloc(index->n_parts + 1, sizeof *numbers);
    const qv_status s = places && numbers ? QV_OK : qv_no_memory(c->dir, err);
    size_t n = 0;
    for (size_t i = 0; i < index->n_parts && !s; i++)
        if (index->parts[i].gone)
            free(index->parts[i].path);
        else
            places[n++] = (struct place){ .part = index->parts[i], .number = (uint32_t)i };
    if (n)
        qsort(places, n, sizeof *places, by_name);
    for (size_t i = 0; i < n; i++) {
        index->parts[i] = places[i].part;
        numbers[places[i].number] = (uint32_t)i;
    }
    for (size_t i = 0; i < index->n_keys && !s; i++)
        index->keys[i].part = numbers[index->keys[i].part];
    for (size_t i = 0; i < c->n_damage && !s; i++)
        c->damage[i].part = numbers[c->damage[i].part];
    index->n_parts = s ? index->n_parts : n;
    free(places);
    free(numbers);
    return s;
}

/* Reuses an earlier reading, unless a record that it dropped might be effective now. */
static qv_status
take_over(qv_cache *c, const qv_cache *before, qv_error *err)
{
    if (!before || before->n_damage || before->index.has_dropped ||
        strcmp(before->made_by, c->made_by) != 0)
        return qv_index_grow(&c->index, err);
    c->seed = before->seed;
    c->part_bytes = before->part_bytes;
    return qv_index_copy(&c->index, &before->index, err);
}

static qv_status
forget(qv_cache *c, qv_error *err)
{
    qv_index_free(&c->index);
    c->index.dir = c->dir;
    c->part_bytes = 0;
    return qv_index_grow(&c->index, err);
}

/* Reads parts until no new part is found: a part that replaces another one meanwhile must not be
 * missed. */
static qv_status
scan_rounds(qv_cache *c, const struct qv_cache_reading *how, struct qv_part_index *p, qv_error *err)
{
    const int rounds = how->parts ? 1 : MOST_ROUNDS;
    size_t room = c->index.n_parts, seen = 0;
    for (int round = 0; round < rounds; round++) {
        const size_t known = c->index.n_parts;
        qv_status s =
            how->parts ? take_names(c, how, &room, err) : list_folder(c, known, &room, &seen, err);
        if (!s && !round && seen < known) { /* reused parts are gone */
            s = forget(c, err);
            return s ? s : scan_rounds(c, how, p, err);
        }
        if (s || c->index.n_parts == known)
            return s;
        qsort(c->index.parts + known, c->index.n_parts - known, sizeof *c->index.parts, by_name);
        for (size_t i = known; i < c->index.n_parts && !s; i++)
            s = read_part(c, p, i, how->parts != NULL, err);
        if (!s)
            s = put_in_order(c, err);
        if (s)
            return s;
    }
    return QV_OK;
}

qv_status
qv_cache_scan(qv_cache *c, const struct qv_cache_reading *how, qv_error *err)
{
    qv_status status = take_over(c, how->before, err);
    struct qv_part_index p = { .layout = c->layout, .seed = c->seed };
    if (!status)
        status = scan_rounds(c, how, &p, err);
    qv_part_index_free(&p);
    if (!status)
        status = qv_part_maps_open(c->maps, c->index.n_parts, err);
    for (size_t i = 0; i < c->index.n_parts && !status; i++)
        c->maps->at[i].bytes = c->index.parts[i].bytes;
    if (!status)
        qv_index_settle(&c->index);
    return status;
}
