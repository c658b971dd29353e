/* SPDX-License-Identifier: MIT */
/* Decodes JPEG files by libjpeg-turbo, with Pillow's settings and its arithmetic for CMYK, so that
 * images equal Pillow's byte for byte. libjpeg reports errors by longjmp, which does not leave this
 * file. */
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

#ifdef QV_WITH_JPEG

#include <jpeglib.h> /* must precede jerror.h, which tests its macros */

#include <jerror.h>

#define READ_BYTES 65536
/* Encoders write about 10 scans. A scan may have only a few bytes, but needs a pass over the whole
 * image. */
#define MOST_SCANS 100

struct jpeg {
    struct jpeg_error_mgr errors; /* must be first, as libjpeg's pointer to it is cast back */
    struct jpeg_source_mgr input;
    struct jpeg_progress_mgr progress;
    struct jpeg_decompress_struct d;
    jmp_buf back;
    qvm_source *source;
    AVFrame *frame;
    JSAMPROW cmyk; /* one row of a CMYK image */
    int64_t at;    /* offset in the file after the bytes read */
    int io_errno;
    bool has_header, has_rows; /* how far decoding has got */
    bool at_end, damaged, stopped;
    const char *why; /* our own error text; NULL: libjpeg has the text */
    uint8_t buffer[READ_BYTES];
};

/* ---- what libjpeg calls ---------------------------------------------------------------------- */

static void
leave(j_common_ptr d)
{
    struct jpeg *j = (struct jpeg *)(void *)d->err;
    longjmp(j->back, 1);
}

static void
leave_since(struct jpeg *j, const char *why)
{
    j->why = why;
    longjmp(j->back, 1);
}

static void
say_nothing(j_common_ptr d)
{
    (void)d;
}

/* Handles a warning. Some mean damage; others only that a header harmlessly breaks a rule. */
static void
hear(j_common_ptr d, int level)
{
    struct jpeg *j = (struct jpeg *)(void *)d->err;
    if (level >= 0)
        return;
    switch (d->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC: j->damaged = true; break;
    case JWRN_EXTRANEOUS_DATA:
        j->damaged |= j->has_header;
        break; /* bytes within a scan are damage; before it they are padding */
    default: break;
    }
}

static void
begin_input(j_decompress_ptr d)
{
    (void)d;
}

/* Ends the decoder if it was stopped, else signals life. */
static void
look_at_watch(struct jpeg *j)
{
    const qvm_watch *watch = j->source->watch;
    j->stopped = atomic_load(watch->stop);
    if (j->stopped)
        leave_since(j, "it was stopped");
    watch->alive(watch->user);
}

/* Supplies a missing end marker. It also checks the watch, because a header may be gigabytes of
 * padding, during which libjpeg reports no progress. */
static boolean
fill_input(j_decompress_ptr d)
{
    struct jpeg *j = (struct jpeg *)(void *)d->err;
    look_at_watch(j);
    const int64_t n = qvm_source_read(j->source, j->at, j->buffer, READ_BYTES);
    if (n < 0) {
        j->io_errno = errno;
        leave_since(j, "");
    }
    j->at += n;
    j->input.next_input_byte = j->buffer;
    j->input.bytes_in_buffer = (size_t)n;
    if (!n) {
        j->at_end = true;
        j->buffer[0] = 0xff;
        j->buffer[1] = JPEG_EOI;
        j->input.bytes_in_buffer = 2;
    }
    return TRUE;
}

static void
skip_input(j_decompress_ptr d, long n)
{
    struct jpeg *j = (struct jpeg *)(void *)d->err;
    if (n <= 0)
        return;
    if ((size_t)n <= j->input.bytes_in_buffer) {
        j->input.next_input_byte += n;
        j->input.bytes_in_buffer -= (size_t)n;
        return;
    }
    j->at += n - (long)j->input.bytes_in_buffer;
    j->input.bytes_in_buffer = 0;
}

/* Called now and then, at least once per scan. */
static void
watch_progress(j_common_ptr d)
{
    struct jpeg *j = (struct jpeg *)(void *)d->err;
    look_at_watch(j);
    if (j->d.input_scan_number > MOST_SCANS)
        leave_since(j, "it has more than 100 scans");
}

/* ---- what follows the image ------------------------------------------------------------------ */

static bool
is_size(int marker)
{
    return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

/* Returns the place of the next marker in a scan, except restart markers; -1 if there is none. */
static int64_t
find_marker(qvm_pages *pages, int64_t at)
{
    uint8_t b[4096];
    int64_t n;
    while ((n = qvm_pages_read(pages, at, b, sizeof b)) > 1) {
        for (int64_t i = 0; i + 1 < n; i++)
            if (b[i] == 0xff && b[i + 1] && b[i + 1] != 0xff && (b[i + 1] & 0xf8) != JPEG_RST0)
                return at + i;
        at += n - 1;
    }
    return -1;
}

/* Returns whether a whole JPEG of this size begins at a place of the file. */
static bool
is_jpeg_at(const qvm_source *source, int64_t at, unsigned width, unsigned height)
{
    qvm_pages pages = { .source = source };
    uint8_t m[9] = { 0 };
    bool same = false;
    if (qvm_pages_read(&pages, at, m, 3) < 3 || memcmp(m, "\xff\xd8\xff", 3) != 0)
        return false;
    at += 2;
    while (at > 0 && qvm_pages_read(&pages, at, m, sizeof m) >= 2 && m[0] == 0xff) {
        if (m[1] == JPEG_EOI)
            return same;
        if (is_size(m[1]))
            same = qvm_number(m + 5, 2, true) == height && qvm_number(m + 7, 2, true) == width;
        if (is_size(m[1]) && !same)
            return false;
        at += m[1] == 0xff ? 1 : 2 + (int64_t)qvm_number(m + 2, 2, true);
        if (m[1] == 0xda)
            at = find_marker(&pages, at);
    }
    return false;
}

/* ---- decoding -------------------------------------------------------------------------------- */

static void
open_decoder(struct jpeg *j)
{
    jpeg_std_error(&j->errors);
    j->errors.error_exit = leave;
    j->errors.emit_message = hear;
    j->errors.output_message = say_nothing;
    j->d.err = &j->errors;
    jpeg_create_decompress(&j->d);
    /* overrides a limit from the environment: the process has its own */
    j->d.mem->max_memory_to_use = 0;
    j->input = (struct jpeg_source_mgr){ .init_source = begin_input,
                                         .fill_input_buffer = fill_input,
                                         .skip_input_data = skip_input,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = begin_input };
    j->progress.progress_monitor = watch_progress;
    j->d.src = &j->input;
    j->d.progress = &j->progress;
}

static void
make_frame(struct jpeg *j)
{
    j->frame->format = AV_PIX_FMT_RGB24;
    j->frame->width = (int)j->d.image_width;
    j->frame->height = (int)j->d.image_height;
    if ((int64_t)j->frame->width * j->frame->height > QVM_MAX_PIXELS)
        leave_since(j, "it is too large");
    j->cmyk = j->d.num_components == 4 ? malloc(4 * (size_t)j->d.image_width) : NULL;
    if (av_frame_get_buffer(j->frame, 0) < 0 || (j->d.num_components == 4 && !j->cmyk)) {
        j->errors.msg_code = JERR_OUT_OF_MEMORY;
        longjmp(j->back, 1);
    }
}

/* Converts CMYK as Pillow does, which assumes that it is inverted, as Adobe writes it. */
static void
convert_cmyk(const uint8_t *cmyk, int width, uint8_t *rgb)
{
    for (int x = 0; x < width; x++, cmyk += 4)
        for (int c = 0; c < 3; c++) {
            const int black = cmyk[3], product = (255 - cmyk[c]) * black + 128;
            const int value = black - (((product >> 8) + product) >> 8);
            *rgb++ = (uint8_t)(value < 0 ? 0 : value);
        }
}

static void
read_rows(struct jpeg *j)
{
    while (j->d.output_scanline < j->d.output_height) {
        uint8_t *to = j->frame->data[0] + (int64_t)j->d.output_scanline * j->frame->linesize[0];
        JSAMPROW row = j->cmyk ? j->cmyk : to;
        jpeg_read_scanlines(&j->d, &row, 1);
        if (j->cmyk)
            convert_cmyk(j->cmyk, j->frame->width, to);
    }
}

/* Returns false on failure; j has the reason then. */
static bool
decode(struct jpeg *j)
{
    if (setjmp(j->back))
        return j->has_rows; /* nothing after the rows is needed */
    open_decoder(j);
    jpeg_read_header(&j->d, TRUE);
    j->d.out_color_space = j->d.num_components == 4 ? JCS_CMYK : JCS_RGB;
    make_frame(j);
    j->has_header = true;
    jpeg_start_decompress(&j->d);
    read_rows(j);
    j->has_rows = true;
    /* if only the end marker is missing, a file with a single scan is whole */
    j->damaged |= j->at_end && jpeg_has_multiple_scans(&j->d);
    jpeg_finish_decompress(&j->d);
    j->source->more_jpegs =
        !j->at_end && is_jpeg_at(j->source, j->at - (int64_t)j->input.bytes_in_buffer,
                                 j->d.image_width, j->d.image_height);
    return true;
}

static qv_status
fail(struct jpeg *j, qv_error *err)
{
    char words[JMSG_LENGTH_MAX];
    if (j->io_errno)
        return qv_fail(err, QV_EIO, "reading failed: %s", strerror(j->io_errno));
    if (j->d.image_width && (int64_t)j->d.image_width * j->d.image_height > QVM_MAX_PIXELS)
        return qv_fail(err, QV_EFORMAT, "frames of %ux%u; at most 16384x16384 pixels are supported",
                       j->d.image_width, j->d.image_height);
    if (!j->why && j->errors.msg_code == JERR_OUT_OF_MEMORY)
        return qv_fail(err, QV_ENOMEM, "no memory for a JPEG image of %ux%u", j->d.image_width,
                       j->d.image_height);
    if (!j->why)
        j->errors.format_message((j_common_ptr)&j->d, words);
    return qv_fail(err, QV_EFORMAT, "the 'mjpeg' image cannot be decoded: %s%s",
                   j->why ? "" : "libjpeg-turbo reports: ", j->why ? j->why : words);
}

qv_status
qvm_jpeg_read(qvm_source *source, AVFrame *frame, qv_error *err)
{
    struct jpeg *j = calloc(1, sizeof *j);
    if (!j)
        return qv_fail(err, QV_ENOMEM, "no memory for the decoder");
    j->source = source;
    j->frame = frame;
    const bool done = decode(j);
    const qv_status status = done || j->stopped ? QV_OK : fail(j, err);
    source->n_given++;
    source->errors += j->damaged;
    jpeg_destroy_decompress(&j->d);
    free(j->cmyk);
    free(j);
    return status;
}

/* Returns whether Pillow reads this kind of JPEG: Huffman or arithmetic coding, 8 bits, 1, 3 or 4
 * components. */
bool
qvm_jpeg_is_readable(const qvm_source *source)
{
    qvm_pages pages = { .source = source };
    uint8_t m[10];
    int64_t at = 2, n;
    while ((n = qvm_pages_read(&pages, at, m, sizeof m)) == sizeof m && m[0] == 0xff) {
        const int type = m[1], colours = m[9];
        if (is_size(type))
            return (type <= 0xc2 || type == 0xc9 || type == 0xca) && m[4] == 8 &&
                   (colours == 1 || colours == 3 || colours == 4);
        at += type == 0xff ? 1 : 2 + (m[2] << 8 | m[3]); /* skips a byte of padding, or a segment */
    }
    return n < 0;
}

#else

bool
qvm_jpeg_is_readable(const qvm_source *source)
{
    (void)source;
    return false;
}

qv_status
qvm_jpeg_read(qvm_source *source, AVFrame *frame, qv_error *err)
{
    (void)source;
    (void)frame;
    return qv_fail(err, QV_EUNSUPPORTED, "this build has no libjpeg-turbo");
}

#endif
