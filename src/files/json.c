/* SPDX-License-Identifier: MIT */

#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

#define MAX_READ ((uint64_t)1 << 30) /* Linux reads less than 2 GiB in one call */

qv_status
qv_file_open(const char *path, int *fd, uint64_t *size, qv_error *err)
{
    /* O_NONBLOCK: opening a FIFO without a writer would wait for ever. */
    const int f = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (f < 0)
        return qv_fail(err, qv_status_of_errno(errno), "%s: cannot be opened: %s", path,
                       strerror(errno));

    struct stat st;
    if (fstat(f, &st)) {
        const int e = errno;
        close(f);
        return qv_fail(err, qv_status_of_errno(e), "%s: cannot be examined: %s", path, strerror(e));
    }
    if (!S_ISREG(st.st_mode)) {
        const char *is = S_ISDIR(st.st_mode)    ? "a folder"
                         : S_ISFIFO(st.st_mode) ? "a FIFO"
                                                : "a device or socket";
        close(f);
        return qv_fail(err, QV_EIO, "%s: is %s; a regular file is needed", path, is);
    }
    *fd = f;
    *size = (uint64_t)st.st_size;
    return QV_OK;
}

qv_status
qv_file_read(int fd, const char *path, uint64_t offset, void *dst, uint64_t bytes, qv_error *err)
{
    char *p = dst;
    while (bytes) {
        const size_t want = (size_t)(bytes < MAX_READ ? bytes : MAX_READ);
        const ssize_t got = pread(fd, p, want, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return qv_fail(err, qv_status_of_errno(errno), "%s: reading at byte %llu: %s", path,
                           (unsigned long long)offset, strerror(errno));
        if (got == 0)
            return qv_fail(err, QV_EIO,
                           "%s: ends at byte %llu, %llu bytes short: the file shrank since it was "
                           "opened",
                           path, (unsigned long long)offset, (unsigned long long)bytes);
        p += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return QV_OK;
}

qv_status
qv_file_read_part(int fd, const char *path, const struct qv_file_part *tensor, uint64_t begin,
                  void *dst, uint64_t bytes, qv_error *err)
{
    char quoted[QV_QUOTE_SIZE];
    if (begin > tensor->bytes || bytes > tensor->bytes - begin)
        return qv_fail(err, QV_EINVAL,
                       "%s: tensor %s has %llu bytes; %llu from byte %llu on cannot be read", path,
                       qv_json_quote(tensor->name, quoted), (unsigned long long)tensor->bytes,
                       (unsigned long long)bytes, (unsigned long long)begin);
    return qv_file_read(fd, path, tensor->offset + begin, dst, bytes, err);
}

const char *
qv_file_hint(const void *head, size_t n)
{
    static const struct {
        const char *magic, *hint;
    } known[] = {
        { "version https://git-lfs",
          ": this is a Git-LFS pointer, not the file itself; run `git lfs pull`" },
        { "<!DOCTYPE", ": this is an HTML page, so the download failed" },
        { "<!doctype", ": this is an HTML page, so the download failed" },
        { "<html", ": this is an HTML page, so the download failed" },
        { "<HTML", ": this is an HTML page, so the download failed" },
        { "\x1f\x8b", ": this is gzip data; decompress it first" },
        { "PK\x03\x04", ": this is a zip or PyTorch file, which is not the expected format" },
        { "GGUF", ": this is a GGUF file, which is not the expected format" },
        { "\xef\xbb\xbf", ": this begins with a byte order mark; save it as plain UTF-8" },
    };
    const char *p = head;
    while (n && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) {
        p++;
        n--;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const size_t m = strlen(known[i].magic);
        if (n >= m && !memcmp(p, known[i].magic, m))
            return known[i].hint;
    }
    return "";
}

qv_status
qv_json_parse(const char *path, const char *text, size_t n, size_t max_brackets, json_t **root,
              qv_error *err)
{
    json_error_t e;
    size_t brackets = 0;
    for (size_t i = 0; i < n; i++)
        brackets += text[i] == '[' || text[i] == '{';
    if (brackets > max_brackets)
        return qv_fail(err, QV_EFORMAT, "%s: has %zu opening brackets; at most %zu are allowed",
                       path, brackets, max_brackets);
    json_t *json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!json) {
        /* jansson reports no error for most allocations that fail; an empty text then means out
         * of memory. */
        if (json_error_code(&e) == json_error_out_of_memory || !*e.text)
            return qv_fail(err, QV_ENOMEM, "%s: no memory for %zu bytes of JSON", path, n);
        /* jansson's error text quotes the input with its control characters, so it is cleaned. */
        char quoted[QV_QUOTE_SIZE];
        return qv_fail(err, QV_EFORMAT, "%s, line %d, column %d: not valid JSON: %s%s", path,
                       e.line, e.column, qv_json_quote(e.text, quoted), qv_file_hint(text, n));
    }
    if (!json_is_object(json)) {
        char found[QV_QUOTE_SIZE];
        qv_json_show(json, found);
        json_decref(json);
        return qv_fail(err, QV_EFORMAT, "%s: the top level is %s; it must be an object {..}", path,
                       found);
    }
    *root = json;
    return QV_OK;
}

qv_status
qv_json_read(const char *path, size_t cap, json_t **root, qv_error *err)
{
    int fd = -1;
    uint64_t size = 0;
    qv_status s = qv_file_open(path, &fd, &size, err);
    if (s)
        return s;

    char *text = NULL;
    if (size > cap) {
        s = qv_fail(err, QV_EFORMAT, "%s: has %llu bytes; at most %zu are allowed", path,
                    (unsigned long long)size, cap);
        goto done;
    }
    if (size == 0) {
        s = qv_fail(err, QV_EFORMAT, "%s: is empty; a JSON object is needed", path);
        goto done;
    }
    text = malloc((size_t)size);
    if (!text) {
        s = qv_fail(err, QV_ENOMEM, "%s: no memory for %llu bytes", path, (unsigned long long)size);
        goto done;
    }
    s = qv_file_read(fd, path, 0, text, size, err);
    if (!s)
        s = qv_json_parse(path, text, (size_t)size, QV_JSON_MAX_BRACKETS, root, err);
done:
    free(text);
    close(fd);
    return s;
}

char *
qv_json_text(const json_t *value, size_t flags)
{
    const size_t n = json_dumpb(value, NULL, 0, flags);
    char *text = n ? malloc(n + 1) : NULL;
    if (!text || json_dumpb(value, text, n, flags) != n) {
        free(text);
        return NULL;
    }
    text[n] = 0;
    return text;
}

struct shown {
    char *text;
    size_t n;
};

/* Collects what fits and then stops the dump, because values can be as long as a file. */
static int
show_some(const char *piece, size_t n, void *user)
{
    struct shown *s = user;
    const size_t room = QV_QUOTE_SIZE - 1 - s->n;
    const bool fits = n <= room;
    for (size_t i = 0; i < (fits ? n : room); i++) /* JSON does not escape DEL */
        s->text[s->n++] = (char)(piece[i] == 0x7f ? '?' : piece[i]);
    if (!fits)
        memcpy(s->text + s->n - 3, "...", 3);
    return fits ? 0 : -1;
}

const char *
qv_json_show(const json_t *value, char text[QV_QUOTE_SIZE])
{
    struct shown s = { .text = text };
    if (!value)
        return strcpy(text, "missing");
    json_dump_callback(value, show_some, &s,
                       JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    text[s.n] = 0;
    return text;
}

const char *
qv_json_quote(const char *string, char text[QV_QUOTE_SIZE])
{
    json_t *json = json_string(string);
    qv_json_show(json, text);
    if (!json)
        strcpy(text, "(not UTF-8)");
    json_decref(json);
    return text;
}

qv_status
qv_json_wrong(const struct qv_json_object *object, const char *key, const json_t *value,
              const char *wanted, qv_error *err)
{
    char found[QV_QUOTE_SIZE];
    return qv_fail(err, QV_EFORMAT, "%s: %s%s is %s; %s", object->file, object->prefix, key,
                   qv_json_show(value, found), wanted);
}

qv_status
qv_json_unsupported(const struct qv_json_object *object, const char *key, const json_t *value,
                    const char *wanted, qv_error *err)
{
    qv_json_wrong(object, key, value, wanted, err);
    if (err)
        err->status = QV_EUNSUPPORTED;
    return QV_EUNSUPPORTED;
}

const json_t *
qv_json_get(const struct qv_json_object *object, const char *key)
{
    const json_t *value = json_object_get(object->json, key);
    return json_is_null(value) && object->null_is_absent ? NULL : value;
}

qv_status
qv_json_check_int(const struct qv_json_object *object, const char *key, const json_t *found,
                  int64_t min, int64_t max, int64_t *value, qv_error *err)
{
    const json_int_t v = json_integer_value(found); /* 0 if `found` is not an integer */
    if (!json_is_integer(found) || v < min || v > max) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "it must be an integer from %lld to %lld", (long long)min,
                 (long long)max);
        return qv_json_wrong(object, key, found, wanted, err);
    }
    *value = v;
    return QV_OK;
}

qv_status
qv_json_int(const struct qv_json_object *object, const char *key, int64_t min, int64_t max,
            int64_t *value, qv_error *err)
{
    const json_t *found = qv_json_get(object, key);
    return found ? qv_json_check_int(object, key, found, min, max, value, err) : QV_OK;
}

static bool
real_in_range(const json_t *json, double min, double max)
{
    const double v = json_number_value(json);
    return json_is_number(json) && v >= min && v <= max;
}

qv_status
qv_json_real(const struct qv_json_object *object, const char *key, double min, double max,
             double *value, qv_error *err)
{
    const json_t *found = qv_json_get(object, key);
    if (!found)
        return QV_OK;
    if (!real_in_range(found, min, max)) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "it must be a number from %g to %g", min, max);
        return qv_json_wrong(object, key, found, wanted, err);
    }
    *value = json_number_value(found);
    return QV_OK;
}

qv_status
qv_json_reals(const struct qv_json_object *object, const char *key, double min, double max,
              double values[3], qv_error *err)
{
    const json_t *found = qv_json_get(object, key);
    if (!found)
        return QV_OK;
    bool ok = json_is_array(found) && json_array_size(found) == 3;
    for (size_t i = 0; ok && i < 3; i++)
        ok = real_in_range(json_array_get(found, i), min, max);
    if (!ok) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "it must be 3 numbers from %g to %g", min, max);
        return qv_json_wrong(object, key, found, wanted, err);
    }
    for (size_t i = 0; i < 3; i++)
        values[i] = json_number_value(json_array_get(found, i));
    return QV_OK;
}

qv_status
qv_json_string(const struct qv_json_object *object, const char *key, const char **value,
               qv_error *err)
{
    const json_t *found = qv_json_get(object, key);
    if (!found)
        return QV_OK;
    if (!json_is_string(found))
        return qv_json_wrong(object, key, found, "it must be a string", err);
    *value = json_string_value(found);
    return QV_OK;
}

qv_status
qv_json_child(const struct qv_json_object *object, const char *key, const char *prefix,
              struct qv_json_object *child, qv_error *err)
{
    const json_t *found = qv_json_get(object, key);
    if (found && !json_is_object(found))
        return qv_json_wrong(object, key, found, "it must be an object {..}", err);
    *child = *object;
    child->json = found;
    child->prefix = prefix;
    return QV_OK;
}
