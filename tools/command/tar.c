/* SPDX-License-Identifier: MIT */
/* qwenvit list: makes a list of the clips and images in tar files, each in its place there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "list.h"
#include "tool.h"

enum { BLOCK = 512, MOST_NAME = 1 << 16 };

struct header {
    char name[100], mode[24], size[12], mtime[12], sum[8], type, link[100], magic[8], owner[80],
        prefix[155], rest[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is a block");

/* Reads a number in octal, or in base 256 if the first bit is set; -1: it is neither. */
static int64_t
number(const char *field, size_t n)
{
    int64_t x = 0;
    if (*field & 0x80) {
        for (size_t i = n - 8; i < n; i++)
            x = (int64_t)((uint64_t)x << 8 | (uint8_t)field[i]);
        return x;
    }
    size_t i = 0;
    while (i < n && field[i] == ' ')
        i++;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        x = x * 8 + field[i] - '0';
    return i == n || !field[i] || field[i] == ' ' ? x : -1;
}

static bool
is_header(const struct header *h)
{
    const uint8_t *bytes = (const uint8_t *)h;
    int64_t sum = 0;
    for (size_t i = 0; i < BLOCK; i++) /* the sum's own field counts as blanks */
        sum +=
            i >= offsetof(struct header, sum) && i < offsetof(struct header, type) ? ' ' : bytes[i];
    return sum == number(h->sum, sizeof h->sum);
}

/* Takes name and size from a record of pax headers: lines of "LENGTH NAME=VALUE". */
static void
take_pax(char *text, size_t bytes, char name[MOST_NAME], int64_t *size)
{
    for (char *at = text, *end = text + bytes, *word; at < end;) {
        const size_t n = strtoul(at, &word, 10);
        if (*word != ' ' || n < 5 || n > (size_t)(end - at) || at + n < word + 2)
            return;
        at[n - 1] = 0;
        if (!strncmp(word, " path=", 6))
            snprintf(name, MOST_NAME, "%s", word + 6);
        else if (!strncmp(word, " size=", 6))
            *size = strtoll(word + 6, NULL, 10);
        at += n;
    }
}

static qv_status
cut_short(const char *path, qv_error *err)
{
    return qv_fail(err, QV_EFORMAT, "%s: it is cut short, or not a tar file", qv_path_tail(path));
}

/* Visits the members that are files. name holds what a long name's own member said. */
static qv_status
visit(FILE *f, const char *path, char name[MOST_NAME + 1], tool_tar_see *see, void *user,
      qv_error *err)
{
    struct header h;
    char text[MOST_NAME + 1];
    int64_t at = 0, asked = -1;
    struct stat st;
    if (fstat(fileno(f), &st))
        return cut_short(path, err);
    for (*name = 0; fread(&h, 1, BLOCK, f) == BLOCK && h.name[0];) {
        const bool is_long = h.type == 'L' || h.type == 'x';
        const int64_t own = number(h.size, sizeof h.size),
                      size = asked >= 0 && !is_long ? asked : own;
        at += BLOCK;
        if (!is_header(&h) || size < 0 || size > st.st_size - at)
            return cut_short(path, err);
        if (is_long) {
            if (size > MOST_NAME || fread(text, 1, (size_t)size, f) != (size_t)size)
                return cut_short(path, err);
            text[size] = 0;
            if (h.type == 'L')
                memcpy(name, text, (size_t)size + 1);
            else
                take_pax(text, (size_t)size, name, &asked);
        } else {
            if (!*name)
                snprintf(name, MOST_NAME, "%.155s%s%.100s", h.prefix,
                         *h.prefix && !strncmp(h.magic, "ustar\0", 6) ? "/" : "", h.name);
            const bool is_file = h.type == '0' || !h.type || h.type == '7';
            const qv_status s = is_file ? see(user, name, at, size, err) : QV_OK;
            if (s)
                return s;
            *name = 0;
            asked = -1;
        }
        at += (size + BLOCK - 1) / BLOCK * BLOCK;
        if (fseeko(f, at, SEEK_SET))
            return qv_fail(err, QV_EIO, "%s: cannot be read: %s", qv_path_tail(path),
                           strerror(errno));
    }
    return ferror(f)
               ? qv_fail(err, QV_EIO, "%s: cannot be read: %s", qv_path_tail(path), strerror(errno))
           : at ? QV_OK
                : cut_short(path, err);
}

qv_status
tool_tar_visit(const char *path, tool_tar_see *see, void *user, qv_error *err)
{
    FILE *f = fopen(path, "rb");
    char *name = f ? malloc(MOST_NAME + 1) : NULL;
    const qv_status s =
        !f ? qv_fail(err, QV_EIO, "%s: cannot be opened: %s", qv_path_tail(path), strerror(errno))
        : !name ? qv_no_memory(path, err)
                : visit(f, path, name, see, user, err);
    free(name);
    if (f)
        fclose(f);
    return s;
}

bool
tool_tar_is(const char *path)
{
    struct header h;
    FILE *f = fopen(path, "rb");
    const bool is = f && fread(&h, 1, BLOCK, f) == BLOCK && h.name[0] && is_header(&h);
    if (f)
        fclose(f);
    return is;
}

/* ---- the list -------------------------------------------------------------------------------- */

struct shard {
    const struct tool_options *o;
    const char *path;
    int64_t n;
};

static qv_status
print_member(void *user, const char *name, int64_t offset, int64_t bytes, qv_error *err)
{
    struct shard *s = user;
    if (!bytes || !tool_is_media(name))
        return QV_OK;
    const char *slash = strrchr(s->path, '/'), *shard = slash ? slash + 1 : s->path;
    const size_t n = strlen(shard);
    const bool ends = n > 4 && !strcmp(shard + n - 4, ".tar");
    char *key = NULL;
    if (asprintf(&key, "%.*s/%s", (int)(ends ? n - 4 : n), shard, name) < 0)
        return qv_no_memory(s->path, err);
    json_t *j = tool_json("path:t key:t offset:I bytes:I", s->path, key, offset, bytes);
    free(key);
    s->n++;
    struct tool_options o = *s->o;
    o.json = true;
    return tool_show(&o, j, "", err);
}

int
tool_list(const struct tool_options *o)
{
    int code = TOOL_DONE;
    for (size_t i = 0; i < o->n_arguments; i++) {
        struct shard shard = { .o = o, .path = o->arguments[i] };
        qv_error err = { 0 };
        qv_status s = tool_tar_visit(shard.path, print_member, &shard, &err);
        if (!s && !shard.n)
            s = qv_fail(&err, QV_EFORMAT, "%s: no file in it has the ending of a clip or image",
                        qv_path_tail(shard.path));
        code = s ? tool_fail(s, &err) : code;
    }
    return code;
}
