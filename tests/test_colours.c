/* SPDX-License-Identifier: MIT */
/* Tests that the GPU's colour arithmetic equals the linked swscale's, on CPUs for which swscale has
 * vector code. */
#include "test.h"

#include <libavutil/cpu.h>

#include "colours.h"

static void
expect(qvm_converter *converter, const AVFrame *f)
{
    qvm_colours colours;
    qvm_image image;
    qvm_find_colours(f->colorspace, f->color_range == AVCOL_RANGE_JPEG, &colours);
    assert_int_equal(qvm_convert(converter, f, (qvm_turn){ false, false, false }, &image, NULL), 0);
    for (int y = 0; y < f->height; y++)
        for (int x = 0; x < f->width; x++) {
            const int luma = f->data[0][y * f->linesize[0] + x];
            const int u = f->data[1][y / 2 * f->linesize[1] + x / 2];
            const int v = f->data[2][y / 2 * f->linesize[2] + x / 2];
            const uint8_t *got = image.rgb + y * image.stride + 3 * x;
            int rgb[3];
            qvm_to_rgb(&colours, luma, u, v, rgb);
            if (rgb[0] != got[0] || rgb[1] != got[1] || rgb[2] != got[2])
                fail_msg(
                    "space %d, range %d, %dx%d at %d, %d: (%d, %d, %d) is %d %d %d, not %d %d %d",
                    f->colorspace, f->color_range, f->width, f->height, x, y, luma, u, v, got[0],
                    got[1], got[2], rgb[0], rgb[1], rgb[2]);
        }
}

static bool
has_vectors(void)
{
#ifdef __x86_64__
    return av_get_cpu_flags() & AV_CPU_FLAG_SSSE3;
#else
    return false;
#endif
}

/* All triples of Y, U and V, in 256 frames of one U each. */
TEST(test_all_colours)
{
    if (!has_vectors())
        skip();
    for (int kind = 0; kind < COLOUR_KINDS; kind++) {
        qvm_converter converter = { .colour = QVM_CLIP };
        AVFrame *f = new_colours(kind);
        assert_non_null(f);
        for (int u = 0; u < COLOUR_SETS; u++) {
            set_u(f, u);
            expect(&converter, f);
        }
        qvm_converter_close(&converter);
        av_frame_free(&f);
    }
}

/* swscale's last columns may be made by other code than the rest. */
TEST(test_all_widths)
{
    uint32_t seed = 7;
    if (!has_vectors())
        skip();
    for (int kind = 0; kind < COLOUR_KINDS; kind++)
        for (int width = 2; width <= 100; width += 2)
            for (int height = 2; height <= 10; height += 4) {
                qvm_converter converter = { .colour = QVM_CLIP };
                AVFrame *f = new_frame(width, height, kind);
                assert_non_null(f);
                draw_samples(f, &seed);
                expect(&converter, f);
                qvm_converter_close(&converter);
                av_frame_free(&f);
            }
}
