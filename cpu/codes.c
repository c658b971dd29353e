/* SPDX-License-Identifier: MIT */
/* The memory layout of a quantised w (struct codes_cpu), and its laying out. */
#include "cpu.h"

struct codes_cpu
qv_codes_cpu(int64_t n, int64_t k, const struct qv_groups *groups)
{
    struct codes_cpu w = { .n = n, .k = k, .groups = *groups };
    w.factors = CODES_COLS * qv_dtype_bytes(groups->dtype);
    w.group_bytes = 2 * w.factors + (size_t)(CODES_COLS * groups->group * groups->bits / 8);
    return w;
}

/* Returns how many panels are interleaved with the one of column `col`, itself included. */
static int64_t
panels_beside(const struct codes_cpu *w, int64_t col)
{
    const int64_t left = panels_of_cpu(w->n) - col / CODES_COLS / CODES_PANELS * CODES_PANELS;
    return left < CODES_PANELS ? left : CODES_PANELS;
}

size_t
qv_codes_at_cpu(const struct codes_cpu *w, int64_t col, int64_t group)
{
    const int64_t panel = col / CODES_COLS, in = panel % CODES_PANELS;
    const int64_t before = (panel - in) * (w->k / w->groups.group);
    return (size_t)(before + group * panels_beside(w, col) + in) * w->group_bytes;
}

struct qv_layout
qv_codes_layout_cpu(const struct qv_matrix *matrix)
{
    const struct codes_cpu w = qv_codes_cpu(matrix->n, matrix->k, &matrix->groups);
    const int64_t groups = panels_of_cpu(w.n) * (w.k / w.groups.group);
    return (struct qv_layout){ (size_t)groups * w.group_bytes, CODES_COLS };
}

/* Returns the codes of one word of a row in the order of a word of a line. */
static uint32_t
word_of_line(uint32_t codes, int64_t bits)
{
    if (bits == 8)
        return (codes & 0xff0000ff) | (codes & 0xff00) << 8 | (codes >> 8 & 0xff00);
    uint32_t halves[2] = { codes & 0x0f0f0f0f, codes >> 4 & 0x0f0f0f0f };
    for (int i = 0; i < 2; i++) {
        halves[i] = (halves[i] | halves[i] >> 4) & 0x00ff00ff;
        halves[i] = (halves[i] | halves[i] >> 8) & 0xffff;
    }
    return halves[0] | halves[1] << 16;
}

/* Copies a group of a row to its column of a panel's group. */
static void
lay_out_group(const struct codes_cpu *w, const char *row, int64_t group, char *to, int64_t col)
{
    const struct qv_groups *g = &w->groups;
    const int64_t groups = w->k / g->group;
    const size_t element = qv_dtype_bytes(g->dtype), bytes = (size_t)(g->group * g->bits / 8);
    const char *codes = row + (size_t)group * bytes, *factors = row + (size_t)groups * bytes;
    for (int i = 0; i < 2; i++)
        memcpy(to + (size_t)i * w->factors + (size_t)col * element,
               factors + (size_t)(i * groups + group) * element, element);
    to += 2 * w->factors + (size_t)col * 4;
    for (size_t at = 0; at < bytes; at += 4, to += LINE_BYTES) {
        uint32_t word;
        memcpy(&word, codes + at, sizeof word);
        word = word_of_line(word, g->bits);
        memcpy(to, &word, sizeof word);
    }
}

void
qv_codes_lay_out_cpu(struct qv_device_cpu *dev, const struct qv_matrix *matrix, int64_t row0,
                     int64_t rows, const void *src, void *dst)
{
    const struct codes_cpu w = qv_codes_cpu(matrix->n, matrix->k, &matrix->groups);
    const size_t row_bytes = qv_grouped_row_bytes(&w.groups, w.k);
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t panel = 0; panel < panels_of_cpu(rows); panel++)
        for (int64_t group = 0; group < w.k / w.groups.group; group++) {
            char *to = (char *)dst + qv_codes_at_cpu(&w, row0 + panel * CODES_COLS, group);
            for (int64_t col = 0; col < CODES_COLS && panel * CODES_COLS + col < rows; col++)
                lay_out_group(&w,
                              (const char *)src + (size_t)(panel * CODES_COLS + col) * row_bytes,
                              group, to, col);
        }
}

void
qv_codes_factors_cpu(const struct codes_cpu *w, const void *group, float *out)
{
    switch (w->groups.dtype) {
    case QV_F32: memcpy(out, group, 2 * CODES_COLS * sizeof *out); break;
    case QV_BF16: qv_lanes_load_cpu(out, group, QV_BF16, 2 * CODES_COLS); break;
    case QV_F16:
        for (int i = 0; i < 2 * CODES_COLS; i++)
            out[i] = qv_f16_to_f32(((const uint16_t *)group)[i]);
        break;
    case QV_U8:
    case QV_I32:
    case QV_DTYPE_AUTO:
    case QV_DTYPE_MAX: break;
    }
}
