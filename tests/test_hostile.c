/* SPDX-License-Identifier: MIT */
/* Tests checkpoints that change or fail while they are loaded. pread() is replaced here
 * (LINKER:--wrap), because a real disk is seldom slow or broken on demand. */

#include "test.h"

#include "tempdir.h"
#include "wrap.h"

/* ---- a disk --------------------------------------------------------------------------------- */

static struct {
    int n_reads;
    size_t most;            /* The most bytes that a read returns; 0: all. */
    bool interrupts;        /* Every other read is interrupted. */
    int at;                 /* The number of the read, from 1, at which something happens. */
    int error;              /* The error that the read gives, or ... */
    const char *cut, *over; /* ... the file that is cut, or that is moved to model.safetensors. */
} disk;

WRAPPED(ssize_t, pread, (int fd, void *data, size_t bytes, off_t offset))
{
    disk.n_reads++;
    errno = disk.interrupts ? EINTR : disk.error;
    if ((disk.interrupts && disk.n_reads % 2) || (disk.error && disk.n_reads == disk.at))
        return -1;
    if (disk.cut && disk.n_reads == disk.at)
        assert_int_equal(truncate(disk.cut, 3000), 0);
    if (disk.over && disk.n_reads == disk.at)
        assert_int_equal(rename(disk.over, temp_path("model.safetensors")), 0);
    return __real_pread(fd, data, disk.most && bytes > disk.most ? disk.most : bytes, offset);
}

/* ---- checkpoints ---------------------------------------------------------------------------- */

static void
copy_single(void)
{
    temp_copy("qwen3_vl/config.json", "config.json");
    temp_copy("qwen3_vl/model.safetensors", "model.safetensors");
}

/* Loads the folder. The digest of the weights goes into `digest` if it is not NULL. */
static qv_status
load(char digest[40], qv_error *err)
{
    qv_context *ctx = NULL;
    qv_model *model = NULL;
    qv_model_info info;
    if (qv_context_open(&(qv_context_options){ .backend = "ref" }, &ctx, err))
        fail_msg("%s", err->text);
    disk.n_reads = 0;
    const qv_status status = qv_model_load(ctx, tempdir, NULL, &model, err);
    if (!status) {
        qv_model_get_info(model, &info);
        memcpy(digest, info.digest, sizeof info.digest);
    } else {
        assert_null(model);
    }
    qv_model_free(&model);
    qv_context_close(&ctx);
    return status;
}

static void
load_ok(char digest[40])
{
    assert_ok(load(digest, ERR));
}

/* ---- tests ---------------------------------------------------------------------------------- */

TEST(slow_reads_give_the_same_weights)
{
    char expected[40], digest[40];
    copy_single();
    load_ok(expected);
    assert_true(disk.n_reads > 20);
    disk.most = 61;
    load_ok(digest);
    assert_string_equal(digest, expected);
    disk.most = 5000;
    disk.interrupts = true;
    load_ok(digest);
    assert_string_equal(digest, expected);
}

TEST(an_error_at_any_read_is_an_error_of_that_file)
{
    char digest[40];
    copy_single();
    load_ok(digest);
    const int n = disk.n_reads;
    for (disk.at = 1; disk.at <= n; disk.at++) {
        disk.error = EIO;
        expect_error(QV_EIO, "reading at byte|Input/output error", load(digest, ERR));
        assert_int_equal(disk.n_reads, disk.at);
    }
}

TEST(a_file_that_is_cut_while_it_is_loaded_is_an_error)
{
    char digest[40];
    copy_single();
    load_ok(digest);
    const int n = disk.n_reads;
    for (disk.at = 3; disk.at <= n;
         disk.at += 17) { /* The first reads are of config.json, which is shorter. */
        copy_single();
        disk.cut = temp_path("model.safetensors");
        expect_error(QV_EIO, "model.safetensors: ends at byte|shrank", load(digest, ERR));
    }
}

TEST(a_file_that_is_replaced_while_it_is_loaded_is_the_old_one)
{
    char expected[40], digest[40];
    copy_single();
    load_ok(expected);
    for (disk.at = 4; disk.at < 20; disk.at += 15) {
        copy_single();
        temp_text("another", "something else");
        disk.over = temp_path("another");
        load_ok(digest);
        assert_string_equal(digest, expected);
    }
}

/* GLM's Conv2d has the sides of a token, and the positions are those of an image. */
TEST(what_config_json_sizes_otherwise_is_refused)
{
    static const struct {
        const char *fields, *words;
    } cases[] = {
        { "\"spatial_merge_size\":1,\"image_size\":7",
          "model.visual.downsample.weight has shape [12,16,2,2]|requires [12,16,1,1]" },
        { "\"image_size\":8",
          "embeddings.position_embedding.weight has shape [9,16]|requires [16,16]" },
        { "\"image_size\":7,\"intermediate_size\":24",
          "model.visual.merger.gate_proj.weight has shape [20,12]|requires [24,12]" },
    };
    char digest[40];
    temp_copy("glm4v/model.safetensors", "model.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        qv_error err = { 0 };
        const int n =
            snprintf(text, sizeof text,
                     "{\"model_type\":\"glm4v\",\"vision_config\":{\"depth\":2,\"hidden_size\":16,"
                     "\"num_heads\":2,\"out_hidden_size\":12,\"patch_size\":2,%s%s}}",
                     strstr(cases[i].fields, "intermediate") ? "" : "\"intermediate_size\":20,",
                     cases[i].fields);
        temp_file("config.json", text, (size_t)n);
        expect_failure(cases[i].fields, QV_EFORMAT, cases[i].words, load(digest, &err), &err);
    }
}

static int
set_up(void)
{
    memset(&disk, 0, sizeof disk);
    return tempdir_make();
}

TEST_EACH(set_up, tempdir_remove);
