/* SPDX-License-Identifier: MIT */
/* How all subcommands talk to the user: errors, exit codes, JSON and progress. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "files/json.h"
#include "path.h"
#include "tool.h"

/* Whether the terminal's last line is a progress bar without a newline. A signal handler reads it
 * too. */
static volatile sig_atomic_t bar_is_shown;

bool
tool_bar_is_shown(void)
{
    return bar_is_shown;
}

void
tool_bar_end(void)
{
    if (bar_is_shown)
        fputs("\r\033[K", stderr);
    bar_is_shown = 0;
}

/* Returns the formatted text, for free(). Only line ends at the start and end of the format are
 * kept; other control characters are replaced. NULL if memory runs out. */
static char *
printable(const char *format, va_list arguments)
{
    char *text;
    const int n = vasprintf(&text, format, arguments);
    if (n < 0)
        return NULL;
    const size_t first = strspn(format, "\n");
    size_t ends = 0;
    for (size_t i = strlen(format); i > first && format[i - 1] == '\n'; i--)
        ends++;
    char *end = text + n - ends;
    *end = 0;
    qv_make_printable(text + first);
    memset(end, '\n', ends);
    return text;
}

/* Prints `before`, the formatted text and `behind` in one call, so that threads' lines do not
 * mix. */
static void
print(FILE *to, const char *before, const char *format, va_list ap, const char *behind)
{
    char *text = printable(format, ap);
    fprintf(to, "%s%s%s", before, text ? text : "(out of memory)", behind);
    free(text);
}

void
tool_print(const char *format, ...)
{
    va_list ap;
    tool_bar_end();
    va_start(ap, format);
    print(stdout, "", format, ap, "");
    va_end(ap);
}

void
tool_say(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    print(stderr, "", format, ap, "\n");
    va_end(ap);
}

void
tool_bar_show(bool terminal, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    char *text = printable(format, ap);
    va_end(ap);
    struct winsize size;
    size_t n = text ? strlen(text) : 0;
    if (terminal && !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col && n >= size.ws_col)
        for (n = size.ws_col - 1U; n && (text[n] & 0xc0) == 0x80;)
            n--; /* the next bar could not overwrite a wrapped line */
    fprintf(stderr, "%s%.*s%s", terminal ? "\r" : "", (int)n, text ? text : "",
            terminal ? "\033[K" : "\n");
    free(text);
    bar_is_shown = terminal;
}

void
tool_complain(const char *format, ...)
{
    va_list ap;
    tool_bar_end();
    va_start(ap, format);
    print(stderr, "qwenvit: ", format, ap, "\n");
    va_end(ap);
}

int
tool_exit_code(qv_status status)
{
    switch (status) {
    case QV_OK: return TOOL_DONE;
    case QV_EINVAL: return TOOL_USAGE;
    case QV_EIO:
    case QV_EFORMAT:
    case QV_EUNSUPPORTED: return TOOL_BAD_INPUT;
    case QV_ENOMEM:
    case QV_ENODEVICE:
    case QV_EBACKEND:
    case QV_ESTATE:
    case QV_EFULL:
    case QV_STATUS_MAX: break;
    }
    return TOOL_DEVICE;
}

int
tool_fail(qv_status status, const qv_error *err)
{
    tool_complain("%s", err->text);
    return tool_exit_code(status);
}

bool
tool_is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

json_t *
tool_json_text(const char *bytes)
{
    char *text = qv_utf8_text(bytes);
    json_t *json = text ? json_string(text) : NULL;
    free(text);
    return json;
}

int64_t
tool_peak_bytes(void)
{
#ifdef __APPLE__
    enum { UNIT = 1 };
#else
    enum { UNIT = 1024 };
#endif
    struct rusage used;
    return getrusage(RUSAGE_SELF, &used) ? 0 : (int64_t)used.ru_maxrss * UNIT;
}

char *
tool_json_line(const json_t *value)
{
    char *text = qv_json_text(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    char *line = text ? malloc(6 * strlen(text) + 1) : NULL, *to = line;
    for (const char *from = text; line && *from;) {
        const size_t bytes = qv_utf8_bytes(from), n = bytes ? bytes : 1;
        const unsigned code = qv_control_code(from, n);
        if (code)
            to += snprintf(to, 7, "\\u%04X", code);
        else
            to = (char *)memcpy(to, from, n) + n;
        from += n;
    }
    if (line)
        *to = 0;
    free(text);
    return line;
}

/* Appends the line and its newline in one write, so that lines of several processes do not mix. If
 * the disk fills up in between, the file is truncated to its previous length. */
static qv_status
append_line(const char *path, char *text, qv_error *err)
{
    const size_t n = strlen(text) + 1;
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return qv_fail(err, QV_EIO, "%s: cannot append a result: %s", path, strerror(errno));
    text[n - 1] = '\n';
    flock(fd, LOCK_EX); /* locking may fail, for example on a device */
    const off_t end = lseek(fd, 0, SEEK_END);
    const ssize_t put = write(fd, text, n);
    int why = put < 0 ? errno : put < (ssize_t)n ? ENOSPC : 0;
    if (why && put > 0 && ftruncate(fd, end))
        why = errno;
    if (close(fd) && !why)
        why = errno;
    return why ? qv_fail(err, QV_EIO, "%s: cannot append a result: %s", path, strerror(why))
               : QV_OK;
}

qv_status
tool_emit_json(const struct tool_results *to, json_t *object, qv_error *err)
{
    char *text = tool_json_line(object);
    json_decref(object);
    if (!text)
        return qv_fail(err, QV_ENOMEM, "no memory for a result");
    qv_status status = QV_OK;
    if (to->json_file)
        status = append_line(to->json_file, text, err);
    else {
        puts(text);
        fflush(stdout);
    }
    free(text);
    return status;
}

/* ---- progress -------------------------------------------------------------------------------- */

void
tool_progress_begin(struct tool_progress *p, const char *label, int64_t total, bool quiet)
{
    *p = (struct tool_progress){ .label = label,
                                 .unit = "frames",
                                 .total = total,
                                 .started_s = qv_seconds(),
                                 .shown_s = qv_seconds(),
                                 .quiet = quiet,
                                 .terminal = isatty(2) };
}

void
tool_progress_show(struct tool_progress *p, int64_t done)
{
    enum { WIDTH = 30 };
    double now = qv_seconds(), every_s = p->terminal ? 0.1 : 10;
    if (p->quiet || (now - p->shown_s < every_s && done < p->total) ||
        (!p->terminal && done >= p->total))
        return;
    p->shown_s = now;
    double rate = (double)done / (now - p->started_s + 1e-9);
    if (!p->terminal) {
        tool_bar_show(false, "%s: %lld of %lld %s, %.1f per second", p->label, (long long)done,
                      (long long)p->total, p->unit, rate);
        return;
    }
    char bar[WIDTH + 1];
    int64_t filled = p->total ? done * WIDTH / p->total : WIDTH;
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[WIDTH] = 0;
    tool_bar_show(true, "%s [%s] %lld/%lld %s, %.1f/s", p->label, bar, (long long)done,
                  (long long)p->total, p->unit, rate);
}

void
tool_progress_end(struct tool_progress *p, int64_t done)
{
    tool_progress_show(p, done);
    tool_bar_end();
}

/* ---- names ----------------------------------------------------------------------------------- */

bool
tool_is_nearer(const char *a, const char *b, size_t *least)
{
    size_t row[32] = { 0 };
    const size_t n = strlen(b);
    if (n >= 32)
        return false;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; *a; a++, i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            const size_t replaced = corner + (*a != b[j - 1]),
                         other = row[j] < row[j - 1] ? row[j] : row[j - 1];
            corner = row[j];
            row[j] = replaced < other + 1 ? replaced : other + 1;
        }
    }
    const bool is = row[n] < *least;
    *least = is ? row[n] : *least;
    return is;
}
