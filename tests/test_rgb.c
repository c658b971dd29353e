/* SPDX-License-Identifier: MIT */
/* Tests that clips get the RGB of swscale's default flags, as in torchcodec and plain ffmpeg:
 * frames of every pixel format that swscale reads, in even and odd sizes, ranges and matrices, and
 * flagged as interlaced or not, with random samples. */
#include "test.h"

#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include "../decoder/decoder.h"
#include "ffmpeg_write.h"
#include "judge.h"

static const struct {
    int width, height;
} sizes[] = { { 64, 48 }, { 104, 62 }, { 99, 51 }, { 33, 18 }, { 2, 1 } };

static const struct {
    enum AVColorRange range;
    enum AVColorSpace space;
    bool interlaced;
} kinds[] = {
    { AVCOL_RANGE_UNSPECIFIED, AVCOL_SPC_UNSPECIFIED, false },
    { AVCOL_RANGE_UNSPECIFIED, AVCOL_SPC_RGB, false },
    { AVCOL_RANGE_MPEG, AVCOL_SPC_BT709, false },
    { AVCOL_RANGE_JPEG, AVCOL_SPC_BT709, true },
    { AVCOL_RANGE_MPEG, AVCOL_SPC_BT2020_NCL, true },
    { AVCOL_RANGE_JPEG, AVCOL_SPC_SMPTE170M, false },
    { AVCOL_RANGE_UNSPECIFIED, AVCOL_SPC_SMPTE240M, true },
};

enum { LEAST_FORMATS = 150 };

/* Bayer patterns and floats are in no clip. */
static bool
is_tested(const AVPixFmtDescriptor *format)
{
    return sws_isSupportedInput(av_pix_fmt_desc_get_id(format)) && format->comp[0].depth <= 16 &&
           !(format->flags &
             (AV_PIX_FMT_FLAG_HWACCEL | AV_PIX_FMT_FLAG_BAYER | AV_PIX_FMT_FLAG_FLOAT));
}

/* Gives each component of each pixel a random value of its depth, and a palette random colours. */
static void
draw(AVFrame *frame, const AVPixFmtDescriptor *format, uint32_t *seed)
{
    uint16_t row[128];
    const bool rgb = format->flags & AV_PIX_FMT_FLAG_RGB;
    for (int c = 0; c < format->nb_components; c++) {
        const bool chroma = !rgb && (c == 1 || c == 2) && format->nb_components > 2;
        const int width =
            chroma ? AV_CEIL_RSHIFT(frame->width, format->log2_chroma_w) : frame->width;
        const int height =
            chroma ? AV_CEIL_RSHIFT(frame->height, format->log2_chroma_h) : frame->height;
        for (int y = 0; y < height; y++) {
            for (int x = 0; x < width; x++)
                row[x] = (uint16_t)(test_random(seed) >> (32 - format->comp[c].depth));
            av_write_image_line2(row, frame->data, frame->linesize, format, 0, y, c, width,
                                 sizeof *row);
        }
    }
    for (int i = 0; format->flags & AV_PIX_FMT_FLAG_PAL && i < AVPALETTE_SIZE; i++)
        frame->data[1][i] = (uint8_t)(test_random(seed) >> 24);
}

static AVFrame *
make_frame(const AVPixFmtDescriptor *format, int width, int height, uint32_t *seed)
{
    AVFrame *frame = new_frame(width, height, av_pix_fmt_desc_get_id(format));
    assert_non_null(frame);
    for (int p = 0; p < AV_NUM_DATA_POINTERS && frame->buf[p]; p++) /* the padding, too */
        memset(frame->buf[p]->data, 0, frame->buf[p]->size);
    draw(frame, format, seed);
    return frame;
}

/* Returns whether our result equals the judge's. */
static bool
is_equal(qvm_converter *converter, const AVFrame *frame)
{
    qvm_image image;
    AVFrame *rgb = judge_rgb(frame);
    const size_t row = 3 * (size_t)frame->width;
    const qv_status status =
        qvm_convert(converter, frame, (qvm_turn){ .transpose = false }, &image, NULL);
    const bool equal =
        rgb ? !status && judge_hash_rows(image.rgb, image.stride, row, image.height) ==
                             judge_hash_rows(rgb->data[0], rgb->linesize[0], row, rgb->height)
            : status == QV_EFORMAT;
    av_frame_free(&rgb);
    return equal;
}

/* One converter converts all frames of a format, so it must notice changes between frames. */
static int
check_format(const AVPixFmtDescriptor *format, uint32_t *seed)
{
    qvm_converter converter = { .colour = QVM_CLIP };
    int n = 0;
    EACH (size, sizes) {
        AVFrame *frame = make_frame(format, size->width, size->height, seed);
        EACH (k, kinds) {
            AVFrame *f = av_frame_clone(frame);
            assert_non_null(f);
            f->color_range = k->range;
            f->colorspace = k->space;
            if (k->interlaced)
                set_interlaced(f);
            if (!is_equal(&converter, f)) {
                print_message("%s, %dx%d, range %d, matrix %d%s: other than swscale's\n",
                              format->name, f->width, f->height, f->color_range, f->colorspace,
                              k->interlaced ? ", interlaced" : "");
                n++;
            }
            av_frame_free(&f);
        }
        av_frame_free(&frame);
    }
    qvm_converter_close(&converter);
    return n;
}

TEST(all_formats)
{
    uint32_t seed = 11;
    int n = 0, n_wrong = 0;
    av_log_set_level(AV_LOG_QUIET);
    for (const AVPixFmtDescriptor *at = NULL; (at = av_pix_fmt_desc_next(at));)
        if (is_tested(at)) {
            n_wrong += check_format(at, &seed);
            n++;
        }
    print_message("%d formats, %d frames differ\n", n, n_wrong);
    assert_in_range(n, LEAST_FORMATS, 1000);
    assert_int_equal(n_wrong, 0);
}
