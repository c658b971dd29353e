/* SPDX-License-Identifier: MIT */
/* Images: reads from any file which way up it says that it is, why it cannot be decoded and which
 * codes are black and white, and decodes JPEG files by libjpeg-turbo, of up to a million pixels as
 * their headers say. */
#include "fuzz.h"
#include "../decoder/decoder.h"

static void
say_nothing(void *user)
{
}

/* Returns whether the largest header that any decoder could find gives a small image. */
static bool
is_small(const uint8_t *data, size_t size)
{
    enum { MOST = 1 << 20 };
    for (size_t i = 0; i + 8 < size; i++) {
        const bool header =
            data[i] == 0xff && data[i + 1] && strchr("\xc0\xc1\xc2\xc9\xca", data[i + 1]);
        const int64_t height = data[i + 5] << 8 | data[i + 6],
                      width = data[i + 7] << 8 | data[i + 8];
        if (header && height * width > MOST)
            return false;
    }
    return true;
}

/* Colours a few pixels by the levels that the file gives as a TIFF does. */
static void
colour(const qvm_source *source)
{
    static uint8_t codes[3][4] = { { 0, 16, 235, 255 }, { 0, 127, 128, 255 }, { 255, 128, 0, 1 } };
    const AVFrame frame = { .data = { codes[0], codes[1], codes[2] },
                            .linesize = { 4, 4, 4 },
                            .width = 4,
                            .height = 1,
                            .format = AV_PIX_FMT_YUV444P };
    float levels[6];
    uint8_t rgb[12];
    qvm_find_levels(source, levels);
    FUZZ_CHECK(qvm_image_rgb(&frame, qvm_tiff_is_packed(source) ? QVM_TIFF : QVM_RAW_TIFF, levels,
                             rgb, sizeof rgb));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    atomic_bool stop;
    qv_error err;
    atomic_init(&stop, false);
    const qvm_watch watch = { .stop = &stop, .alive = say_nothing };
    const int fd = open(fuzz_file("image", data, size), O_RDONLY);
    FUZZ_CHECK(fd >= 0);
    qvm_source source = { .fd = fd, .watch = &watch };
    FUZZ_CHECK(qvm_source_find_kind(&source));
    const int orientation = qvm_find_orientation(&source);
    FUZZ_CHECK(orientation >= 0 && orientation <= 8);
    qvm_why_unread(&source);
    colour(&source);
    AVFrame *frame = av_frame_alloc();
    FUZZ_CHECK(frame);
    if (is_small(data, size) && qvm_jpeg_is_readable(&source) &&
        !fuzz_failed(qvm_jpeg_read(&source, frame, &err), &err)) {
        FUZZ_CHECK(frame->format == AV_PIX_FMT_RGB24 && frame->data[0] && source.errors <= 1);
        FUZZ_CHECK(frame->width > 0 && frame->height > 0);
        FUZZ_CHECK(frame->linesize[0] >= 3 * frame->width);
    }
    av_frame_free(&frame);
    close(fd);
    return 0;
}
