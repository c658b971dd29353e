/* SPDX-License-Identifier: MIT */
/* Explains from a file's bytes why FFmpeg cannot decode it, and reads a TIFF's levels. */
#include <string.h>
#include <unistd.h>

#include "ffmpeg_compat.h"
#include "decoder.h"

enum { HEAD = 32, PACKED = 259 /* a TIFF's tag: how pixels are packed */ };

/* A file's first bytes, with zeros after its end, and the offset to read on from. */
struct view {
    qvm_pages pages;
    int64_t size;
    uint8_t head[HEAD];
};

enum reason { NOT_SEEN, CUT, ANIMATED, FLOATS, HEIF, JPEG_TIFF };

static const char *const words[] = {
    [CUT] = "it is cut short: the file ends before the image does",
    [ANIMATED] = "it is an animated WebP, which this FFmpeg cannot decode; convert it to GIF, APNG "
                 "or a clip, or to a still WebP",
    [FLOATS] = QVM_FLOATS,
    [HEIF] = "it is a HEIF image (HEIC), which this FFmpeg cannot open; convert it to JPEG or PNG "
             "(heif-convert IMAGE.heic IMAGE.jpg)",
    [JPEG_TIFF] = "it is a TIFF whose pixels are packed as JPEG, which FFmpeg decodes as black; "
                  "convert it to JPEG, or to TIFF with another compression",
};

static size_t
read_at(struct view *v, int64_t at, uint8_t *to, size_t n)
{
    const int64_t got = at < 0 || at > v->size ? 0 : qvm_pages_read(&v->pages, at, to, n);
    return got > 0 ? (size_t)got : 0;
}

/* ---- formats --------------------------------------------------------------------------------- */

/* Walks a PNG. A chunk is its length, its name, that many bytes and a checksum; the last one is
 * IEND. */
static enum reason
look_at_png(struct view *v)
{
    enum { MOST_CHUNKS = 100000 };
    uint8_t chunk[8];
    int64_t at = 8;
    for (int i = 0; i < MOST_CHUNKS; i++) {
        if (read_at(v, at, chunk, sizeof chunk) < sizeof chunk)
            return CUT;
        at += 12 + (int64_t)qvm_number(chunk, 4, true);
        if (at > v->size)
            return CUT;
        if (!memcmp(chunk + 4, "IEND", 4))
            return NOT_SEEN;
    }
    return NOT_SEEN;
}

static enum reason
look_at_webp(struct view *v)
{
    if (!memcmp(v->head + 12, "VP8X", 4) && v->head[20] & 2)
        return ANIMATED;
    return 8 + (int64_t)qvm_number(v->head + 4, 4, false) > v->size ? CUT : NOT_SEEN;
}

static enum reason
look_at_bmp(struct view *v)
{
    return (int64_t)qvm_number(v->head + 2, 4, false) > v->size ? CUT : NOT_SEEN;
}

static enum reason
look_at_gif(struct view *v)
{
    uint8_t last = 0;
    return read_at(v, v->size - 1, &last, 1) && last != ';' ? CUT : NOT_SEEN;
}

/* Finds a tag among the first image's entries of 12 bytes: a tag, a type, the number of values, and
 * the values or their offset. *cut: the file ends before that. */
static bool
find_tag(struct view *v, uint16_t tag, uint8_t entry[12], bool *cut)
{
    const bool big = *v->head == 'M';
    const int64_t at = qvm_number(v->head + 4, 4, big);
    *cut = read_at(v, at, entry, 2) < 2;
    const int n = *cut ? 0 : (int)qvm_number(entry, 2, big);
    for (int i = 0; i < n; i++) {
        *cut = read_at(v, at + 2 + 12 * (int64_t)i, entry, 12) < 12;
        if (*cut || qvm_number(entry, 2, big) == tag)
            return !*cut;
    }
    return false;
}

/* Looks at how a TIFF's pixels are packed and its samples: one 16-bit value for each channel. */
static enum reason
look_at_tiff(struct view *v)
{
    enum { AS_JPEG = 7, FORMAT = 339, IS_FLOAT = 3 };
    const bool big = *v->head == 'M';
    uint8_t b[12];
    bool cut;
    if (find_tag(v, PACKED, b, &cut) && qvm_number(b + 8, 2, big) == AS_JPEG)
        return JPEG_TIFF;
    if (cut || !find_tag(v, FORMAT, b, &cut))
        return cut ? CUT : NOT_SEEN;
    if (qvm_number(b + 4, 4, big) > 2 && read_at(v, qvm_number(b + 8, 4, big), b + 8, 2) < 2)
        return CUT;
    return qvm_number(b + 8, 2, big) == IS_FLOAT ? FLOATS : NOT_SEEN;
}

static enum reason
look_at_heif(struct view *v)
{
    (void)v;
    return HEIF;
}

static enum reason (*const looks[QV_IMAGE_FORMATS])(struct view *v) = {
    [QV_IMAGE_PNG] = look_at_png, [QV_IMAGE_WEBP] = look_at_webp, [QV_IMAGE_TIFF] = look_at_tiff,
    [QV_IMAGE_BMP] = look_at_bmp, [QV_IMAGE_GIF] = look_at_gif,   [QV_IMAGE_HEIF] = look_at_heif,
};

static bool
open_view(struct view *v, const qvm_source *source)
{
    const off_t end = lseek(source->fd, 0, SEEK_END);
    const qvm_watch *w = source->watch;
    *v = (struct view){ .pages.source = source };
    if (end < 0)
        return false;
    v->size = w->asked.length ? w->asked.length : (int64_t)end - w->asked.offset;
    read_at(v, 0, v->head, sizeof v->head);
    return true;
}

bool
qvm_tiff_is_packed(const qvm_source *source)
{
    enum { NONE = 1 };
    uint8_t b[12];
    struct view v;
    bool cut;
    return open_view(&v, source) && find_tag(&v, PACKED, b, &cut) &&
           qvm_number(b + 8, 2, *v.head == 'M') != NONE;
}

/* Codes that do not fit in an int, which libtiff rejects, leave the defaults. */
void
qvm_find_levels(const qvm_source *source, float levels[6])
{
    enum { REFERENCE_BLACK_WHITE = 532, LEVELS = 6 };
    static const float usual[LEVELS] = { 0, 255, 128, 255, 128, 255 };
    uint8_t b[12], ratios[LEVELS][8];
    float found[LEVELS];
    struct view v;
    bool cut;
    memcpy(levels, usual, sizeof usual);
    if (!open_view(&v, source) || !find_tag(&v, REFERENCE_BLACK_WHITE, b, &cut))
        return;
    const bool big = *v.head == 'M';
    if (qvm_number(b + 4, 4, big) != LEVELS ||
        read_at(&v, qvm_number(b + 8, 4, big), ratios[0], sizeof ratios) < sizeof ratios)
        return;
    for (int i = 0; i < LEVELS; i++) {
        const uint32_t below = qvm_number(ratios[i] + 4, 4, big);
        found[i] = below ? (float)((double)qvm_number(ratios[i], 4, big) / below) : usual[i];
        if (found[i] >= (float)INT32_MAX)
            return;
    }
    memcpy(levels, found, sizeof found);
}

const char *
qvm_why_unread(const qvm_source *source)
{
    struct view v;
    if (!source->kind || !looks[source->kind->format] || !open_view(&v, source))
        return NULL;
    return words[looks[source->kind->format](&v)];
}
