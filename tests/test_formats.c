/* SPDX-License-Identifier: MIT */
/* Adds an output format, text with one line per token, whose table replaces job/formats.c in this
 * test. Tests that `encode` writes it for files with its ending. */
#include "test.h"

#include "command/tool.h"
#include "error.h"
#include "job/formats.h"
#include "tempdir.h"

/* ---- the format ------------------------------------------------------------------------------ */

struct text {
    FILE *file;
    int64_t width;
    char path[256];
};

static qv_status
begin(void *user, const qv_job_result *r, void **entry, qv_error *err)
{
    const struct qv_output *o = user;
    struct text *t = *entry = calloc(1, sizeof *t);
    t->width = o->model->out_hidden;
    snprintf(t->path, sizeof t->path, "%s", o->path);
    t->file = fopen(t->path, "w");
    return t->file ? QV_OK : qv_fail(err, QV_EIO, "%s: cannot be written", r->key);
}

static qv_status
put(void *user, void *entry, const qv_job_result *r, const qv_job_rows *rows, qv_error *err)
{
    struct text *t = entry;
    const float *x = rows->tokens.tokens;
    bool ok = true;
    for (int64_t i = 0; i < rows->tokens.n * t->width; i++)
        ok = fprintf(t->file, "%.9g%c", (double)x[i], (i + 1) % t->width ? ' ' : '\n') > 0 && ok;
    return ok ? QV_OK : qv_fail(err, QV_EIO, "%s: no room", t->path);
}

static qv_status
end(void *user, void *entry, const qv_job_result *r, qv_error *err)
{
    struct text *t = entry;
    const bool ok = t->file && !fclose(t->file);
    if (!ok || r->status)
        remove(t->path);
    const qv_status status = ok ? QV_OK : qv_fail(err, QV_EIO, "%s: no room", t->path);
    free(t);
    return status;
}

static const struct qv_format text = { ".text", { begin, put, end, NULL } };
const struct qv_format *const qv_formats[] = { &qv_token_files, &text, NULL };

/* ---- the test -------------------------------------------------------------------------------- */

/* Encodes a picture to a file of this name. */
static int
encode(const char *output)
{
    enum { SIDE = 64 };
    uint8_t picture[32 + SIDE * SIDE * 3];
    const size_t n = (size_t)sprintf((char *)picture, "P6 %d %d 255\n", SIDE, SIDE);
    for (size_t i = 0; i < SIDE * SIDE * 3; i++)
        picture[n + i] = (uint8_t)(i * 7);
    const char *path = temp_file("picture.ppm", picture, n + SIDE * SIDE * 3);
    const struct tool_options o = {
        .backend = "ref",
        .dtype = QV_F32,
        .to = { .quiet = true, .json = true, .json_file = temp_path("log.json") },
        .n_devices = 1,
        .model = QV_GOLDEN "/qwen3_vl",
        .output = temp_path(output),
        .output_dtype = QV_F32,
        .arguments = &path,
        .n_arguments = 1
    };
    return tool_encode(&o);
}

/* The values are those of a file of tokens, where they come first. */
TEST(an_ending_chooses_the_format)
{
    uint64_t header;
    float line, file;
    int64_t n = 0;
    assert_int_equal(encode("p.safetensors"), TOOL_DONE);
    assert_int_equal(encode("p.TEXT"), TOOL_DONE);
    FILE *tokens = fopen(temp_path("p.safetensors"), "rb"),
         *lines = fopen(temp_path("p.TEXT"), "r");
    assert_int_equal(fread(&header, sizeof header, 1, tokens), 1);
    assert_int_equal(fseek(tokens, (long)header, SEEK_CUR), 0);
    for (; fscanf(lines, "%f", &line) == 1; n++) {
        assert_int_equal(fread(&file, sizeof file, 1, tokens), 1);
        assert_true(line == file);
    }
    assert_true(feof(lines) && n > 100);
    fclose(tokens);
    fclose(lines);
    assert_int_equal(encode("p.other"), TOOL_USAGE);
}

TEST_GROUP(tempdir_make, tempdir_remove);
