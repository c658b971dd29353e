/* SPDX-License-Identifier: MIT */
/* Finds and reads a tower's tensor in a GGUF file, where it has a different name and may be stored
 * as several tensors. */
#include "stored_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* Maps the names that families use to the names in GGUF files, both without ".weight" and ".bias";
 * # stands for a number. If there are several, the family's tensor is the concatenation of their
 * rows. */
static const struct {
    const char *name, *in_file[QV_MOST_PIECES];
} names[] = {
    { "patch_embed.proj", { "v.patch_embd" } },
    { "post_conv_layernorm", { "v.norm_embd" } },
    { "pos_embed", { "v.position_embd" } },
    { "embeddings.position_embedding", { "v.position_embd" } },
    { "blocks.#.norm1", { "v.blk.#.ln1" } },
    { "blocks.#.norm2", { "v.blk.#.ln2" } },
    { "blocks.#.attn.qkv", { "v.blk.#.attn_q", "v.blk.#.attn_k", "v.blk.#.attn_v" } },
    { "blocks.#.attn.q", { "v.blk.#.attn_q" } },
    { "blocks.#.attn.k", { "v.blk.#.attn_k" } },
    { "blocks.#.attn.v", { "v.blk.#.attn_v" } },
    { "blocks.#.attn.proj", { "v.blk.#.attn_out" } },
    { "blocks.#.mlp.gate_proj", { "v.blk.#.ffn_gate" } },
    { "blocks.#.mlp.up_proj", { "v.blk.#.ffn_up" } },
    { "blocks.#.mlp.fc1", { "v.blk.#.ffn_up" } },
    { "blocks.#.mlp.linear_fc1", { "v.blk.#.ffn_up" } },
    { "blocks.#.mlp.down_proj", { "v.blk.#.ffn_down" } },
    { "blocks.#.mlp.fc2", { "v.blk.#.ffn_down" } },
    { "blocks.#.mlp.linear_fc2", { "v.blk.#.ffn_down" } },
    { "merger.ln_q", { "v.post_ln" } },
    { "merger.norm", { "v.post_ln" } },
    { "post_layernorm", { "v.post_ln" } },
    { "merger.mlp.0", { "mm.0" } },
    { "merger.linear_fc1", { "mm.0" } },
    { "merger.mlp.2", { "mm.2" } },
    { "merger.linear_fc2", { "mm.2" } },
    { "downsample", { "mm.patch_merger" } },
    { "merger.proj", { "mm.model.fc" } },
    { "merger.post_projection_norm", { "mm.post_norm" } },
    { "merger.gate_proj", { "mm.gate" } },
    { "merger.up_proj", { "mm.up" } },
    { "merger.down_proj", { "mm.down" } },
    { "deepstack_merger_list.#.norm", { "v.deepstack.#.norm" } },
    { "deepstack_merger_list.#.linear_fc1", { "v.deepstack.#.fc1" } },
    { "deepstack_merger_list.#.linear_fc2", { "v.deepstack.#.fc2" } },
    { "merger_list.#.ln_q", { "v.deepstack.#.norm" } },
    { "merger_list.#.mlp.0", { "v.deepstack.#.fc1" } },
    { "merger_list.#.mlp.2", { "v.deepstack.#.fc2" } },
};

/* A family's name in pieces: "blocks.3.attn.qkv.weight" is "blocks.#.attn.qkv", 3 and ".weight". */
struct taken {
    char stem[96], suffix[8];
    int64_t number;
};

static struct taken
take_apart(const char *name)
{
    struct taken t = { .number = -1 };
    const char *dot = strrchr(name, '.'), *digits = strpbrk(name, "0123456789");
    size_t n = 0;
    snprintf(t.suffix, sizeof t.suffix, "%.7s", dot);
    /* the digits in "merger.mlp.0" and in "linear_fc1" are part of the name */
    const bool numbered = digits && digits > name && digits[-1] == '.' &&
                          (!strncmp(name, "blocks.", 7) || strstr(name, "_list."));
    for (const char *p = name; p < dot && n + 1 < sizeof t.stem;) {
        if (numbered && p == digits) {
            char *end;
            t.number = strtoll(digits, &end, 10);
            t.stem[n++] = '#';
            p = end;
        } else {
            t.stem[n++] = *p++;
        }
    }
    return t;
}

static void
put_together(const char *in_file, const struct taken *t, char name[QV_GGUF_NAME])
{
    const char *at = strchr(in_file, '#');
    if (at)
        snprintf(name, QV_GGUF_NAME, "%.*s%lld%s%s", (int)(at - in_file), in_file,
                 (long long)t->number, at + 1, t->suffix);
    else
        snprintf(name, QV_GGUF_NAME, "%s%s", in_file, t->suffix);
}

/* Returns whether the names ffn_up and ffn_down are swapped, as in files from before 2025. In such
 * files ffn_down maps the hidden size to the MLP's width instead of the reverse. */
static bool
is_swapped(const struct qv_gguf *file, const struct qv_config *c, int64_t block)
{
    char name[QV_GGUF_NAME];
    snprintf(name, sizeof name, "v.blk.%lld.ffn_down.weight", (long long)block);
    const struct qv_gguf_tensor *t = qv_gguf_find(file, name);
    return t && t->n_dims == 2 && t->shape[1] == c->hidden && t->shape[0] == c->intermediate &&
           c->hidden != c->intermediate;
}

static const char *
unless_swapped(const struct qv_gguf *file, const struct qv_config *c, const struct taken *t,
               const char *in_file)
{
    static const char up[] = "v.blk.#.ffn_up", down[] = "v.blk.#.ffn_down";
    const bool is_up = !strcmp(in_file, up), is_down = !strcmp(in_file, down);
    if ((!is_up && !is_down) || !is_swapped(file, c, t->number))
        return in_file;
    return is_up ? down : up;
}

/* ---- finding --------------------------------------------------------------------------------- */

struct search {
    const struct qv_gguf *file;
    const struct qv_config *config;
    const struct qv_tensor_spec *spec;
    struct qv_stored_tensor *stored;
    qv_error *err;
};

static qv_status
wrong_shape(const struct search *s, const struct qv_gguf_tensor *t, int64_t rows, int64_t cols)
{
    char found[128];
    return qv_fail(s->err, QV_EFORMAT,
                   "%s: tensor %s has shape [%s], but the file's keys require [%lld,%lld]",
                   qv_gguf_path(s->file), t->name,
                   qv_safetensors_print_shape(t->shape, t->n_dims, found, sizeof found),
                   (long long)rows, (long long)cols);
}

/* Adds rows [first, first + rows) of the named tensor, which must have `all` rows, to the whole. */
static qv_status
add_piece(const struct search *s, const char *name, int64_t first, int64_t rows, int64_t all)
{
    const struct qv_gguf_tensor *t = qv_gguf_find(s->file, name);
    struct qv_stored_tensor *stored = s->stored;
    const bool conv = s->spec->conv3d || s->spec->conv2d;
    const bool vector = s->spec->form == QV_TENSOR_VECTOR || s->spec->form == QV_TENSOR_BIAS;
    if (!t)
        return qv_fail(s->err, QV_EFORMAT, "%s: no tensor %s", qv_gguf_path(s->file), name);
    int64_t values = 1;
    for (int i = 0; i < t->n_dims; i++)
        values *= t->shape[i]; /* opening the file has checked that this does not overflow */
    if (t->shape[0] != all || values != all * stored->piece_cols ||
        (!conv && t->n_dims != (vector ? 1 : 2)))
        return wrong_shape(s, t, all, stored->piece_cols);
    if (!qv_gguf_type_can_be_read(t->type) || stored->piece_cols % t->type->values)
        return qv_fail(s->err, QV_EUNSUPPORTED, "%s: tensor %s is %s; %s can be%s",
                       qv_gguf_path(s->file), t->name, t->type->name,
                       qv_gguf_type_can_be_read(t->type) ? "of this type only matrices"
                                                         : qv_gguf_types_read(),
                       qv_gguf_type_can_be_read(t->type) ? " loaded" : "");
    const bool same = !stored->n_pieces || stored->dtype == t->type->dtype;
    stored->dtype = same && t->type->dtype != QV_DTYPE_AUTO ? t->type->dtype : QV_F32;
    stored->pieces[stored->n_pieces++] = (struct qv_gguf_piece){ t, first, rows };
    return QV_OK;
}

/* Finds the patch embedding, which is one tensor per frame: v.patch_embd.weight and
 * v.patch_embd.weight.1. */
static qv_status
find_frames(const struct search *s, const char *name)
{
    const int64_t n = s->config->temporal;
    qv_status status = QV_OK;
    s->stored->frames = n;
    s->stored->channels = s->config->in_channels;
    s->stored->piece_cols = s->spec->k / n;
    for (int64_t i = 0; i < n && !status; i++) {
        char frame[QV_GGUF_NAME + 4];
        snprintf(frame, sizeof frame, i ? "%s.%d" : "%s", name, (int)i);
        status = add_piece(s, frame, 0, s->spec->n, s->spec->n);
    }
    return status;
}

static int
which_of_qkv(const char *stem)
{
    static const char *const stems[] = { "blocks.#.attn.qkv", "blocks.#.attn.q", "blocks.#.attn.k",
                                         "blocks.#.attn.v" };
    for (int i = 0; i < 4; i++)
        if (!strcmp(stem, stems[i]))
            return i - 1;
    return -2;
}

/* From a fused attn_qkv, a family with three tensors takes the rows of q, k or v (0, 1 or 2), and
 * any other family takes all (-1). */
static qv_status
find_pieces(const struct search *s, const struct taken *t, const char *const *in_file)
{
    const int qkv = which_of_qkv(t->stem);
    const int64_t rows = s->spec->n;
    char fused[QV_GGUF_NAME];
    put_together("v.blk.#.attn_qkv", t, fused);
    if (qkv > -2 && qv_gguf_find(s->file, fused))
        return qkv < 0 ? add_piece(s, fused, 0, rows, rows)
                       : add_piece(s, fused, qkv * rows, rows, 3 * rows);
    int n = 0;
    while (n < QV_MOST_PIECES && in_file[n])
        n++;
    qv_status status = QV_OK;
    for (int i = 0; i < n && !status; i++) {
        char name[QV_GGUF_NAME];
        put_together(unless_swapped(s->file, s->config, t, in_file[i]), t, name);
        status = s->spec->conv3d ? find_frames(s, name)
                                 : add_piece(s, name, 0, s->spec->n / n, s->spec->n / n);
    }
    return status;
}

qv_status
qv_stored_gguf_find(const struct qv_gguf *file, const struct qv_config *config,
                    const struct qv_tensor_spec *spec, int i, struct qv_stored_tensor *out,
                    qv_error *err)
{
    const struct search s = { file, config, spec, out, err };
    struct taken t = take_apart(spec->names[i]);
    *out = (struct qv_stored_tensor){ .k = spec->k, .piece_cols = spec->k, .gguf = file };
    if (strstr(t.stem, "_list.#") && t.number < config->n_deepstack)
        t.number = config->deepstack[t.number];
    qv_status status = QV_OK;
    size_t at = 0;
    while (at < sizeof names / sizeof *names && strcmp(t.stem, names[at].name) != 0)
        at++;
    if (at == sizeof names / sizeof *names)
        return qv_fail(err, QV_EUNSUPPORTED, "%s: GGUF files have no name for the tensor %s",
                       qv_gguf_path(file), spec->names[i]);
    status = find_pieces(&s, &t, names[at].in_file);
    if (status)
        return status;
    for (int p = 0; p < out->n_pieces; p++)
        out->widens |= out->pieces[p].tensor->type->dtype != out->dtype;
    out->path = qv_gguf_path(file);
    out->name = out->pieces[0].tensor->name;
    if (spec->conv2d) {
        out->stored_cols = config->merge * config->merge;
        out->stored_rows = spec->k / out->stored_cols;
    }
    return QV_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Returns the bytes of a piece's row in the file. */
static size_t
stored_row(const struct qv_stored_tensor *stored, const struct qv_gguf_piece *piece)
{
    const struct qv_gguf_type *type = piece->tensor->type;
    return (size_t)(stored->piece_cols / type->values) * (size_t)type->bytes;
}

/* Returns the bytes of the longest row of any piece, which is the stride of rows in room->raw. */
static size_t
longest_stored_row(const struct qv_stored_tensor *stored)
{
    size_t most = 0;
    for (int i = 0; i < stored->n_pieces; i++) {
        const size_t bytes = stored_row(stored, &stored->pieces[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* room->raw receives the file's bytes. If there are frames, a row of values precedes the bytes,
 * because the space after them is not aligned. room->canonical receives all values. */
size_t
qv_stored_gguf_row_bytes(const struct qv_stored_tensor *stored)
{
    return longest_stored_row(stored) + (size_t)stored->k * qv_dtype_bytes(stored->dtype);
}

/* Converts a row's values to the dtype of the whole. */
static void
widen_row(const struct qv_stored_tensor *stored, const struct qv_gguf_piece *piece, const void *raw,
          void *out)
{
    const struct qv_gguf_type *type = piece->tensor->type;
    if (type->dtype == stored->dtype)
        memcpy(out, raw, stored_row(stored, piece));
    else
        qv_gguf_widen(type, raw, stored->piece_cols, out);
}

/* Spreads a frame's row [channels, p*p] over one of [channels, frames, p*p]. */
static void
spread(const struct qv_stored_tensor *stored, int64_t channels, int frame, const char *row,
       char *out)
{
    const size_t bytes = (size_t)(stored->piece_cols / channels) * qv_dtype_bytes(stored->dtype);
    for (int64_t c = 0; c < channels; c++)
        memcpy(out + (size_t)(c * stored->frames + frame) * bytes, row + (size_t)c * bytes, bytes);
}

static qv_status
read_rows(const struct qv_stored_tensor *stored, const struct qv_gguf_piece *piece, int64_t row,
          int64_t rows, char *raw, qv_error *err)
{
    const size_t bytes = stored_row(stored, piece);
    return qv_gguf_read(stored->gguf, piece->tensor, (uint64_t)(piece->row + row) * bytes, raw,
                        (uint64_t)rows * bytes, err);
}

static qv_status
read_frames(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
            const struct qv_stored_room *room, qv_error *err)
{
    const int64_t channels = stored->channels;
    const size_t out_bytes = (size_t)stored->k * qv_dtype_bytes(stored->dtype);
    qv_status status = QV_OK;
    for (int f = 0; f < stored->n_pieces && !status; f++) {
        const struct qv_gguf_piece *piece = &stored->pieces[f];
        const size_t bytes = stored_row(stored, piece);
        char *scratch = room->raw, *raw = scratch + out_bytes, *out = room->canonical;
        status = read_rows(stored, piece, row, rows, raw, err);
        for (int64_t i = 0; i < rows && !status; i++) {
            widen_row(stored, piece, raw + (size_t)i * bytes, scratch);
            spread(stored, channels, f, scratch, out + (size_t)i * out_bytes);
        }
    }
    return status;
}

/* The requested rows that are in one piece. */
struct cut {
    const struct qv_gguf_piece *piece;
    int64_t row, rows; /* the first of them in the piece, and their number; <= 0: none */
    int64_t at;        /* the first one's index among the requested rows */
};

static struct cut
cut_of(const struct qv_stored_tensor *stored, int p, int64_t row, int64_t rows)
{
    int64_t first = 0; /* the piece's first row in the whole */
    for (int i = 0; i < p; i++)
        first += stored->pieces[i].rows;
    const int64_t end = first + stored->pieces[p].rows, from = row > first ? row : first;
    const int64_t to = row + rows < end ? row + rows : end;
    return (struct cut){ &stored->pieces[p], from - first, to - from, from - row };
}

qv_status
qv_stored_gguf_read(const struct qv_stored_tensor *stored, int64_t row, int64_t rows,
                    const struct qv_stored_room *room, void **values, qv_error *err)
{
    const size_t out_bytes = (size_t)stored->k * qv_dtype_bytes(stored->dtype);
    const size_t apart = longest_stored_row(stored);
    qv_status status = QV_OK;
    *values = stored->widens || stored->frames ? room->canonical : room->raw;
    if (stored->frames)
        return read_frames(stored, row, rows, room, err);
    for (int p = 0; p < stored->n_pieces && !status; p++) {
        const struct cut cut = cut_of(stored, p, row, rows);
        const size_t bytes = stored_row(stored, cut.piece);
        char *raw = (char *)room->raw + (size_t)cut.at * apart;
        char *out = (char *)room->canonical + (size_t)cut.at * out_bytes;
        if (cut.rows <= 0)
            continue;
        status = read_rows(stored, cut.piece, cut.row, cut.rows, raw, err);
        for (int64_t i = 0; stored->widens && i < cut.rows && !status; i++)
            widen_row(stored, cut.piece, raw + (size_t)i * bytes, out + (size_t)i * out_bytes);
    }
    return status;
}
