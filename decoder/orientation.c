/* SPDX-License-Identifier: MIT */
/* Finds an image's orientation from EXIF or XMP where Pillow looks for them. FFmpeg's own handling
 * depends on the format and on its version. */
#include <string.h>

#include "decoder.h"

enum { MOST_PARTS = 100000, MOST_XMP = 1 << 20, TAG = 274 };

struct place {
    int64_t at, n; /* bytes of the file; n is 0 if there are none */
};

struct places {
    struct place exif, xmp;
    int found; /* the orientation given by the format itself */
};

/* ---- where they are: false for a file that cannot be read ------------------------------------ */

/* Walks a JPEG's segments up to the first scan. */
static bool
walk_jpeg(qvm_pages *pages, struct places *p)
{
    static const char xmp[] = "http://ns.adobe.com/xap/1.0/";
    uint8_t m[4 + sizeof xmp] = { 0 };
    int64_t at = 2, n;
    while ((n = qvm_pages_read(pages, at, m, sizeof m)) >= 4 && m[0] == 0xff && m[1] != 0xda) {
        const int64_t length = (int64_t)qvm_number(m + 2, 2, true);
        if (m[1] == 0xff) { /* padding */
            at++;
            continue;
        }
        if (m[1] == 0xe1 && length > 8 && !p->exif.n && !memcmp(m + 4, "Exif\0\0", 6))
            p->exif = (struct place){ at + 10, length - 8 };
        if (m[1] == 0xe1 && length > 31 && !memcmp(m + 4, xmp, sizeof xmp))
            p->xmp = (struct place){ at + 4, length - 2 };
        at += 2 + length;
    }
    return n >= 0;
}

/* Walks a PNG's chunks: a length, a name, that many bytes, and a checksum. */
static bool
walk_png(qvm_pages *pages, struct places *p)
{
    /* then a byte that marks it as uncompressed */
    static const char xmp[] = "iTXtXML:com.adobe.xmp\0";
    uint8_t m[4 + sizeof xmp] = { 0 };
    int64_t at = 8, n = 0;
    for (int i = 0; i < MOST_PARTS; i++) {
        n = qvm_pages_read(pages, at, m, sizeof m);
        const int64_t length = (int64_t)qvm_number(m, 4, true);
        if (n < 8 || !memcmp(m + 4, "IEND", 4))
            break;
        if (!memcmp(m + 4, "eXIf", 4))
            p->exif = (struct place){ at + 8, length };
        if (!memcmp(m + 4, xmp, sizeof xmp))
            p->xmp = (struct place){ at + 8, length };
        at += 12 + length;
    }
    return n >= 0;
}

/* Walks a WebP's chunks: a name, a length, that many bytes, padded to an even number. */
static bool
walk_webp(qvm_pages *pages, struct places *p)
{
    uint8_t m[8];
    int64_t at = 12, n = 0;
    for (int i = 0; i < MOST_PARTS && (n = qvm_pages_read(pages, at, m, sizeof m)) == 8; i++) {
        const int64_t length = (int64_t)qvm_number(m + 4, 4, false);
        if (!memcmp(m, "EXIF", 4))
            p->exif = (struct place){ at + 8, length };
        if (!memcmp(m, "XMP ", 4))
            p->xmp = (struct place){ at + 8, length };
        at += 8 + length + length % 2;
    }
    return n >= 0;
}

/* Finds the contents of the first box of a name, after a length and the name; n 0: none. */
static struct place
find_box(qvm_pages *pages, struct place in, const char *name)
{
    uint8_t m[8];
    const int64_t end = in.at + in.n;
    for (int i = 0; i < MOST_PARTS && in.at + 8 <= end; i++) {
        const int64_t length =
            qvm_pages_read(pages, in.at, m, 8) == 8 ? (int64_t)qvm_number(m, 4, true) : 0;
        if (length < 8 || length > end - in.at)
            break;
        if (!memcmp(m + 4, name, 4))
            return (struct place){ in.at + 8, length - 8 };
        in.at += length;
    }
    return (struct place){ 0, 0 };
}

/* An AVIF's properties rotate it counterclockwise by quarter turns and then mirror it; its EXIF is
 * ignored. */
static bool
walk_avif(qvm_pages *pages, struct places *p)
{
    /* [quarters][not mirrored; top and bottom swapped; left and right swapped] */
    static const int orientations[4][3] = { { 1, 4, 2 }, { 8, 5, 7 }, { 3, 2, 4 }, { 6, 7, 5 } };
    uint8_t angle = 0, axis = 0;
    struct place box = find_box(pages, (struct place){ 0, INT32_MAX }, "meta");
    if (box.n > 4) /* a version comes first */
        box = find_box(pages, (struct place){ box.at + 4, box.n - 4 }, "iprp");
    const struct place all = find_box(pages, box, "ipco");
    const struct place irot = find_box(pages, all, "irot"), imir = find_box(pages, all, "imir");
    const int64_t n = irot.n ? qvm_pages_read(pages, irot.at, &angle, 1) : 0;
    const int64_t m = imir.n ? qvm_pages_read(pages, imir.at, &axis, 1) : 0;
    p->found = orientations[angle & 3][imir.n ? 1 + (axis & 1) : 0];
    return n >= 0 && m >= 0;
}

/* A TIFF's EXIF is the file itself. */
static bool
walk_tiff(qvm_pages *pages, struct places *p)
{
    (void)pages;
    p->exif = (struct place){ 0, INT32_MAX };
    return true;
}

/* ---- what they say: 0 for nothing, -1 for a file that cannot be read ------------------------- */

/* Types of values in EXIF, by number. Pillow does not accept bytes and texts as an orientation. */
enum value { ABSENT, OPAQUE, UNSIGNED, SIGNED, RATIO, SIGNED_RATIO, REAL };
static const struct {
    int bytes;
    enum value value;
} types[] = {
    [1] = { 1, OPAQUE },        [2] = { 1, OPAQUE },    [3] = { 2, UNSIGNED },
    [4] = { 4, UNSIGNED },      [5] = { 8, RATIO },     [6] = { 1, SIGNED },
    [7] = { 1, OPAQUE },        [8] = { 2, SIGNED },    [9] = { 4, SIGNED },
    [10] = { 8, SIGNED_RATIO }, [11] = { 4, REAL },     [12] = { 8, REAL },
    [13] = { 4, UNSIGNED },     [16] = { 8, UNSIGNED },
};

static int64_t
read_signed(const uint8_t *at, int bytes, bool big)
{
    const int64_t value = qvm_number(at, bytes, big), beyond = (int64_t)1 << (8 * bytes);
    return value < beyond / 2 ? value : value - beyond;
}

static double
read_real(const uint8_t *at, int bytes, bool big)
{
    const uint32_t low = qvm_number(at + (bytes == 8 && big ? 4 : 0), 4, big);
    const uint32_t high = bytes == 8 ? qvm_number(at + (big ? 0 : 4), 4, big) : 0;
    const uint64_t both = (uint64_t)high << 32 | low;
    float single;
    double real;
    memcpy(&single, &low, sizeof single);
    memcpy(&real, &both, sizeof real);
    return bytes == 8 ? real : (double)single;
}

/* Returns the value if it is an integer from 1 to 8, else 1: upright. */
static int
read_value(const uint8_t *at, int bytes, enum value value, bool big)
{
    const bool ratio = value == RATIO || value == SIGNED_RATIO, sign = value == SIGNED_RATIO;
    double number = 0;
    if (ratio) {
        const int64_t over = sign ? read_signed(at, 4, big) : qvm_number(at, 4, big);
        const int64_t under = sign ? read_signed(at + 4, 4, big) : qvm_number(at + 4, 4, big);
        number = under ? (double)over / (double)under : 0;
    } else if (value == UNSIGNED && bytes == 8) {
        number =
            qvm_number(at + (big ? 0 : 4), 4, big) ? 0 : qvm_number(at + (big ? 4 : 0), 4, big);
    } else if (value == UNSIGNED) {
        number = qvm_number(at, bytes, big);
    } else if (value == SIGNED) {
        number = (double)read_signed(at, bytes, big);
    } else if (value == REAL) {
        number = read_real(at, bytes, big);
    }
    return number >= 1 && number <= 8 && number == (int)number ? (int)number : 1;
}

/* Reads the first of an entry's values, which are stored in the entry if they fit. Returns 0 for an
 * entry that Pillow skips: of unknown type, without values, or truncated. */
static int
read_entry(qvm_pages *pages, struct place exif, const uint8_t entry[12], bool big)
{
    const uint32_t type = qvm_number(entry + 2, 2, big);
    const bool known = type < sizeof types / sizeof *types && types[type].value;
    const int bytes = known ? types[type].bytes : 0;
    const int64_t all = (int64_t)qvm_number(entry + 4, 4, big) * bytes;
    const int64_t at = qvm_number(entry + 8, 4, big);
    uint8_t value[8], last;
    memcpy(value, entry + 8, 4);
    if (!all || (all > 4 && at + all > exif.n))
        return 0;
    if (all > 4) {
        const int64_t n = qvm_pages_read(pages, exif.at + at + all - 1, &last, 1);
        const int64_t m = qvm_pages_read(pages, exif.at + at, value, (size_t)bytes);
        if (n < 1 || m < bytes)
            return n < 0 || m < 0 ? -1 : 0;
    }
    return read_value(value, bytes, types[type].value, big);
}

/* Reads the orientation from EXIF: entries of a tag, a type, a count, and the values. */
static int
read_exif(qvm_pages *pages, struct place exif)
{
    uint8_t b[12] = { 0 };
    int64_t n = qvm_pages_read(pages, exif.at, b, 8);
    if (n == 8 && !memcmp(b, "Exif\0\0", 6)) {
        exif = (struct place){ exif.at + 6, exif.n - 6 };
        n = qvm_pages_read(pages, exif.at, b, 8);
    }
    const bool big = *b == 'M';
    if (n < 8 || (memcmp(b, "II*", 4) != 0 && memcmp(b, "MM\0*", 4) != 0))
        return n < 0 ? -1 : 0;
    const int64_t at = qvm_number(b + 4, 4, big);
    n = qvm_pages_read(pages, exif.at + at, b, 2);
    const int64_t entries = n == 2 ? (int64_t)qvm_number(b, 2, big) : 0;
    for (int64_t i = 0; i < entries && at + 14 + 12 * i <= exif.n; i++) {
        n = qvm_pages_read(pages, exif.at + at + 2 + 12 * i, b, sizeof b);
        if (n < (int64_t)sizeof b)
            break;
        const int found = qvm_number(b, 2, big) == TAG ? read_entry(pages, exif, b, big) : 0;
        if (found)
            return found;
    }
    return n < 0 ? -1 : 0;
}

/* Returns the digit after `tiff:Orientation="` or `tiff:Orientation>` if the text begins so, else
 * 0. The text must end with zeros. */
static int
read_name(const char *text)
{
    static const char name[] = "tiff:Orientation";
    const char *at = text + sizeof name - 1;
    if (strncmp(text, name, sizeof name - 1) != 0)
        return 0;
    at += !strncmp(at, "=\"", 2) ? 2 : *at == '>' ? 1 : 0;
    return (at[-1] == '"' || at[-1] == '>') && *at >= '1' && *at <= '8' ? *at - '0' : 0;
}

/* Finds the first orientation in XMP, by a text search as Pillow does. */
static int
read_xmp(qvm_pages *pages, struct place xmp)
{
    enum { BLOCK = 4096, NAME = 20 }; /* blocks overlap by the bytes of the name and its digit */
    char block[BLOCK + NAME];
    const int64_t most = xmp.n < MOST_XMP ? xmp.n : MOST_XMP;
    for (int64_t at = 0; at < most; at += BLOCK) {
        const int64_t left = most - at;
        memset(block, 0, sizeof block);
        if (qvm_pages_read(pages, xmp.at + at, block,
                           left < BLOCK + NAME ? (size_t)left : sizeof block) < 0)
            return -1;
        for (int i = 0; i < BLOCK; i++) {
            const int found = block[i] == 't' ? read_name(block + i) : 0;
            if (found)
                return found;
        }
    }
    return 0;
}

static bool (*const walks[QV_IMAGE_FORMATS])(qvm_pages *pages, struct places *places) = {
    [QV_IMAGE_JPEG] = walk_jpeg, [QV_IMAGE_PNG] = walk_png,   [QV_IMAGE_WEBP] = walk_webp,
    [QV_IMAGE_TIFF] = walk_tiff, [QV_IMAGE_AVIF] = walk_avif,
};

int
qvm_find_orientation(const qvm_source *source)
{
    qvm_pages pages = { .source = source };
    struct places p = { .found = 0 };
    const bool walked = source->kind && walks[source->kind->format];
    const bool read = !walked || walks[source->kind->format](&pages, &p);
    int found = !read ? -1 : p.exif.n ? read_exif(&pages, p.exif) : p.found;
    if (!found && p.xmp.n)
        found = read_xmp(&pages, p.xmp);
    return found;
}
