/* SPDX-License-Identifier: MIT */
/* qwenvit list: makes a list of the clips and images in tar files, with their positions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "files/json.h"
#include "list.h"
#include "numbers.h"
#include "path.h"
#include "qwenvit_cache.h"
#include "tool.h"

enum { BLOCK = 512, MOST_EXTRA = 1 << 20 };

struct header {
    char name[100], mode[24], size[12], mtime[12], sum[8], type, link[100], magic[8], owner[80],
        prefix[155], rest[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is a block");

/* Headers of type L and x set the next member's name or size, or mark it as sparse. */
struct extra {
    int64_t size; /* -1: not set */
    bool is_there, is_sparse;
    char name[MOST_EXTRA + 1], text[MOST_EXTRA + 1];
};

static void
forget(struct extra *e)
{
    e->size = -1;
    e->is_there = e->is_sparse = false;
    *e->name = 0;
}

/* Reads a number in octal, or in base 256 if the first bit is set; -1: invalid or out of range. */
static int64_t
number(const char *field, size_t n)
{
    int64_t x = 0;
    if (*field & 0x80) {
        x = *field & 0x7f;
        for (size_t i = 1; i < n; i++) {
            if (x > INT64_MAX >> 8)
                return -1;
            x = x << 8 | (uint8_t)field[i];
        }
        return x;
    }
    size_t i = 0;
    while (i < n && field[i] == ' ')
        i++;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        x = x * 8 + field[i] - '0';
    return i == n || !field[i] || field[i] == ' ' ? x : -1;
}

/* Verifies the checksum, the sum of the bytes (signed in some old programs). The checksum's own
 * field counts as blanks. */
static bool
is_header(const struct header *h)
{
    const char *bytes = (const char *)h;
    const int64_t said = number(h->sum, sizeof h->sum);
    int64_t sum = 0, of_signed = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        const bool is_own = i >= offsetof(struct header, sum) && i < offsetof(struct header, type);
        sum += is_own ? ' ' : (uint8_t)bytes[i];
        of_signed += is_own ? ' ' : (int8_t)bytes[i];
    }
    return said == sum || said == of_signed;
}

/* Parses a pax header: lines of "LENGTH NAME=VALUE". */
static void
take_pax(struct extra *e, size_t bytes)
{
    for (char *at = e->text, *end = at + bytes, *word; at < end;) {
        const size_t n = strtoul(at, &word, 10);
        if (*word != ' ' || n < 5 || n > (size_t)(end - at) || at + n < word + 2)
            return;
        at[n - 1] = 0;
        if (!strncmp(word, " path=", 6))
            snprintf(e->name, sizeof e->name, "%s", word + 6);
        else if (!strncmp(word, " size=", 6))
            e->size = strtoll(word + 6, NULL, 10);
        else if (!strncmp(word, " GNU.sparse.", 12))
            e->is_sparse = true;
        at += n;
    }
}

static qv_status
cut_short(const char *path, qv_error *err)
{
    return qv_fail(err, QV_EFORMAT, "%s: truncated, or not a tar file", path);
}

/* Reads a header of type L, K or x. K, the long name of a link's target, is ignored. */
static qv_status
read_extra(FILE *f, const char *path, char type, int64_t size, struct extra *e, qv_error *err)
{
    if (size > MOST_EXTRA)
        return qv_fail(err, QV_EFORMAT, "%s: a header has %lld bytes; at most %d are allowed", path,
                       (long long)size, MOST_EXTRA);
    if (fread(e->text, 1, (size_t)size, f) != (size_t)size)
        return cut_short(path, err);
    e->text[size] = 0;
    e->is_there = true;
    if (type == 'L')
        memcpy(e->name, e->text, (size_t)size + 1);
    else if (type == 'x')
        take_pax(e, (size_t)size);
    return QV_OK;
}

static qv_status
visit(FILE *f, const char *path, struct extra *e, tool_tar_see *see, void *user, qv_error *err)
{
    static const struct header zeros;
    struct header h;
    char map[BLOCK];
    int64_t at = 0;
    size_t n;
    struct stat st;
    if (fstat(fileno(f), &st))
        return cut_short(path, err);
    forget(e);
    while ((n = fread(&h, 1, BLOCK, f)) == BLOCK && memcmp(&h, &zeros, BLOCK) != 0) {
        const bool is_extra = h.type == 'L' || h.type == 'K' || h.type == 'x',
                   is_partial = h.type == '1' || h.type == 'S' || e->is_sparse,
                   is_file = is_partial || h.type == '0' || !h.type || h.type == '7';
        const int64_t own = number(h.size, sizeof h.size),
                      size = e->size >= 0 && !is_extra ? e->size : own;
        qv_status s = QV_OK;
        at += BLOCK;
        if (!is_header(&h) || size < 0 || size > st.st_size - at)
            return cut_short(path, err);
        /* blocks that continue an old sparse file's map and are not counted in its size */
        for (bool more = h.type == 'S' && h.prefix[137]; more; more = map[504], at += BLOCK)
            if (fread(map, 1, BLOCK, f) != BLOCK)
                return cut_short(path, err);
        if (is_extra)
            s = read_extra(f, path, h.type, size, e, err);
        else {
            /* GNU's format has times where ustar has the prefix */
            const bool has_prefix = !memcmp(h.magic, "ustar", 6) && *h.prefix;
            if (!*e->name)
                snprintf(e->name, sizeof e->name, "%.155s%s%.100s", has_prefix ? h.prefix : "",
                         has_prefix ? "/" : "", h.name);
            if (is_file)
                s = see(user, e->name, at, is_partial ? -1 : size, err);
            forget(e);
        }
        if (s)
            return s;
        at += qv_round_up(size, BLOCK);
        if (fseeko(f, at, SEEK_SET))
            return qv_fail(err, QV_EIO, "%s: cannot be read: %s", path, strerror(errno));
    }
    return ferror(f) ? qv_fail(err, QV_EIO, "%s: cannot be read: %s", path, strerror(errno))
           : !at || at > st.st_size || (n && n < BLOCK) || e->is_there ? cut_short(path, err)
                                                                       : QV_OK;
}

/* Opens a regular file; anything else may block. */
static qv_status
open_tar(const char *path, FILE **out, qv_error *err)
{
    int fd;
    uint64_t size;
    const qv_status s = qv_file_open(path, &fd, &size, err);
    if (s)
        return s;
    *out = fdopen(fd, "rb");
    if (*out)
        return QV_OK;
    close(fd);
    return qv_no_memory(path, err);
}

qv_status
tool_tar_visit(const char *path, tool_tar_see *see, void *user, qv_error *err)
{
    FILE *f = NULL;
    qv_status s = open_tar(path, &f, err);
    struct extra *e = s ? NULL : malloc(sizeof *e);
    if (!s)
        s = e ? visit(f, path, e, see, user, err) : qv_no_memory(path, err);
    free(e);
    if (f)
        fclose(f);
    return s;
}

bool
tool_tar_is(const char *path)
{
    struct header h;
    FILE *f = NULL;
    const bool is =
        !open_tar(path, &f, NULL) && fread(&h, 1, BLOCK, f) == BLOCK && h.name[0] && is_header(&h);
    if (f)
        fclose(f);
    return is;
}

/* ---- the list -------------------------------------------------------------------------------- */

enum { PARTIAL, BAD_KEY, N_WHYS };
static const char *const whys[] = {
    [PARTIAL] = "sparse files and hard links are not stored whole",
    [BAD_KEY] = "a key must not contain \"..\", begin with \"__\" or be longer than 4096 bytes",
};
_Static_assert(QV_CACHE_MAX_KEY == 4096, "the message names this limit");

struct shard {
    bool key_sample; /* --key sample */
    const char *path;
    int64_t n_listed, n_left[N_WHYS];
};

/* Prints a member's line, or counts the member as left out. */
static qv_status
list_member(void *user, const char *name, int64_t offset, int64_t bytes, qv_error *err)
{
    struct shard *s = user;
    if (!bytes || !tool_is_media(name))
        return QV_OK;
    const char *shard = qv_path_name(s->path), *dot = strchr(qv_path_name(name), '.');
    const size_t n = strlen(shard);
    const bool ends = n > 4 && !strcmp(shard + n - 4, ".tar");
    char *raw = NULL, key[QV_CACHE_MAX_KEY + 1], file[QV_CACHE_MAX_KEY + 1];
    if (s->key_sample ? asprintf(&raw, "%.*s", (int)(dot - name), name) < 0
                      : asprintf(&raw, "%.*s/%s", (int)(ends ? n - 4 : n), shard, name) < 0)
        return qv_no_memory(s->path, err);
    const qv_status bad = qv_cache_key(raw, key, err);
    free(raw);
    if (bad == QV_ENOMEM)
        return bad;
    const bool is_bad = bad || !tool_list_file_of(key, file);
    if (is_bad || bytes < 0) {
        s->n_left[is_bad ? BAD_KEY : PARTIAL]++;
        return QV_OK;
    }
    s->n_listed++;
    return tool_show(&(struct tool_results){ .json = true },
                     tool_json("path:t key:t offset:I bytes:I", s->path, key, offset, bytes), "",
                     err);
}

static int
list_shard(const struct tool_options *o, const char *path)
{
    struct shard shard = { .key_sample = o->key_sample, .path = path };
    qv_error err = { 0 };
    char *text = qv_utf8_text(path);
    qv_status s = !text ? qv_no_memory(path, &err)
                  : strcmp(text, path) != 0
                      ? qv_fail(&err, QV_EFORMAT,
                                "%s: a list cannot contain this path: it is not UTF-8", path)
                      : tool_tar_visit(path, list_member, &shard, &err);
    free(text);
    int64_t n_left = 0;
    for (int i = 0; i < N_WHYS; i++) {
        const long long n = shard.n_left[i];
        n_left += n;
        if (n)
            tool_complain("%s: left out %lld member%s: %s", path, n, n > 1 ? "s" : "", whys[i]);
    }
    if (!s && !shard.n_listed && !n_left)
        s = qv_fail(&err, QV_EFORMAT, "%s: contains no file with a clip's or image's extension",
                    path);
    return s ? tool_fail(s, &err) : n_left ? TOOL_FAILED : TOOL_DONE;
}

int
tool_list(const struct tool_options *o)
{
    int code = TOOL_DONE;
    for (size_t i = 0; i < o->n_arguments; i++) {
        const int one = list_shard(o, o->arguments[i]);
        code = one ? one : code;
    }
    return code && o->n_arguments > 1 ? TOOL_FAILED : code; /* only part of the work failed */
}
