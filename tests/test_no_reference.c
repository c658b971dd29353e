/* SPDX-License-Identifier: MIT */
/*
 * No operation runs as oneDNN's reference code, which is a thousand times slower than its other
 * kernels: not of any family's tower, not in tests/shapes, and no gemm or conv with any epilogue.
 * Kernels are prepared, not run. ctest runs this program under each ONEDNN_MAX_CPU_ISA.
 */
#include "test.h"

#include "model/plan.h"
#include "op_parse.h"
#include "tiny.h"

/* On Arm, oneDNN has other convolutions for some shapes alone, and none without SVE-256; towers
 * have none. */
#ifdef __x86_64__
enum { CONVOLUTIONS = 1, LEAST_DESCRIBED = 1400 };
#else
enum { CONVOLUTIONS = 0, LEAST_DESCRIBED = 500 };
#endif

/* Counts what was described, so that the test cannot pass by seeing nothing. */
static int described;

static void
judge(const char *kernel, const char *of)
{
    if (strstr(kernel, "reference"))
        fail_msg("%s: %s", of, kernel);
    assert_true(*kernel);
    described++;
}

/* Describes an operation. In bf16 it may be refused: this CPU may not multiply that. */
static void
describe(struct qv_device *dev, const char *text)
{
    struct qv_op op;
    struct qv_kernel *kernel = NULL;
    size_t scratch;
    char name[QV_KERNEL_BYTES];
    qv_error err = { 0 };
    if (!CONVOLUTIONS && !strncmp(text, "conv", 4))
        return;
    assert_ok(qv_op_parse(text, &op, ERR));
    const qv_status status = qv_backend_cpu.prepare(dev, &op, 0, &kernel, &scratch, &err);
    if (status == QV_EUNSUPPORTED && strstr(text, "dtype=bf16"))
        return;
    if (status)
        fail_msg("%s: %s", text, err.text);
    qv_backend_cpu.describe(kernel, name, sizeof name);
    qv_backend_cpu.release(dev, kernel);
    judge(name, text);
}

static struct qv_device *
open_device(void)
{
    struct qv_device *dev = NULL;
    const struct qv_device_options o = { .threads = 2 };
    assert_ok(qv_backend_cpu.open(&o, &dev, ERR));
    return test_ends(dev, (void (*)(void *))qv_backend_cpu.close);
}

TEST(of_every_family)
{
    static const char *const families[] = { "qwen2_vl",       "qwen2_5_vl",   "qwen2_5_omni",
                                            "qwen3_vl",       "qwen3_vl_moe", "qwen3_omni_moe",
                                            "qwen3_5",        "qwen4_exp",    "glm4v",
                                            "cohere_compass", "exaone4_5" };
    static const qv_dtype dtypes[] = { QV_F32, QV_BF16 };
    static const int64_t rows[] = { 64, 640 };
    EACH (family, families)
        EACH (dtype, dtypes)
            EACH (patches, rows) {
                char dir[512], kernel[QV_KERNEL_BYTES];
                const qv_model_options described_only = { .dtype = *dtype, .describe = true };
                const qv_plan_options o = { .capacity.patches = *patches };
                qv_model *model;
                qv_plan *plan = NULL;
                qv_context *ctx =
                    tiny_context_with(&(qv_context_options){ .backend = "cpu", .threads = 2 });
                snprintf(dir, sizeof dir, "%s/%s", QV_GOLDEN, *family);
                qv_status status = qv_model_load(ctx, dir, &described_only, &model, NULL);
                if (!status) {
                    test_ends(model, tiny_free_model);
                    status = qv_plan_create(model, &o, &plan, NULL);
                }
                if (status == QV_EUNSUPPORTED && *dtype == QV_BF16)
                    continue; /* the CPU does not multiply it, or not in all shapes */
                assert_ok(status);
                for (size_t i = 0; i < plan->program.n; i++) {
                    qv_program_kernel(&plan->program, i, kernel);
                    judge(kernel, dir);
                }
                qv_plan_free(&plan);
            }
}

TEST(of_the_lists_of_shapes)
{
    static const char *const lists[] = { "small", "qwen-vl", "conv", "grouped" };
    struct qv_device *dev = open_device();
    EACH (list, lists) {
        char path[512], line[1024];
        snprintf(path, sizeof path, "%s/%s.txt", QV_SHAPES, *list);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        while (fgets(line, sizeof line, file)) {
            line[strcspn(line, "\n")] = 0;
            char *dtype = strstr(line, " dtype=");
            if (*line == '#' || !*line)
                continue;
            describe(dev, line);
            if (!dtype)
                continue;
            snprintf(dtype, (size_t)(line + sizeof line - dtype), " dtype=%s",
                     strstr(dtype, "f32") ? "bf16" : "f32");
            describe(dev, line);
        }
        fclose(file);
    }
}

TEST(of_any_epilogue)
{
    static const char *const acts[] = { "", "act=gelu_tanh", "act=gelu_erf", "act=silu",
                                        "act=gelu_quick" };
    static const char *const ops[] = {
        "gemm m=640 n=1024 k=1536",
        "gemm m=190 n=1030 k=72",
        /* dense, in groups and depthwise, in two dimensions and three, of few channels and many */
        "conv n=1 d=1 h=16 w=16 c=32 o=48 kd=1 kh=3 kw=3",
        "conv n=1 d=6 h=16 w=16 c=32 o=48 kd=3 kh=3 kw=3",
        "conv n=1 d=6 h=16 w=16 c=3 o=20 kd=3 kh=3 kw=3",
        "conv n=1 d=6 h=16 w=16 c=32 o=64 kd=3 kh=3 kw=3 groups=4",
        "conv n=1 d=1 h=16 w=16 c=32 o=64 kd=1 kh=3 kw=3 groups=4",
        "conv n=1 d=6 h=16 w=16 c=32 o=32 kd=3 kh=3 kw=3 groups=32",
        "conv n=1 d=1 h=16 w=16 c=32 o=32 kd=1 kh=3 kw=3 groups=32",
        "conv n=1 d=6 h=16 w=16 c=6 o=12 kd=3 kh=3 kw=3 groups=6",
        "conv n=2 d=4 h=16 w=16 c=32 o=48 kd=2 kh=2 kw=2 sd=2 sh=2 sw=2",
        "conv n=1 d=1 h=16 w=16 c=64 o=64 kd=1 kh=1 kw=1",
    };
    struct qv_device *dev = open_device();
    EACH (op, ops)
        EACH (act, acts)
            for (int bits = 0; bits < 16; bits++) {
                const bool conv = !strncmp(*op, "conv", 4);
                char text[512];
                snprintf(text, sizeof text,
                         "%s%s%s%s%s%s alpha=%s bias=%d %s residual_rows=%d dtype=%s", *op,
                         conv && !strstr(*op, " sd=") ? " sd=1 sh=1 sw=1" : "",
                         conv ? " dd=1 dh=1 dw=1" : "",
                         conv && !strstr(*op, "groups=") ? " groups=1" : "",
                         conv ? " x_depth=" : "",
                         conv ? (strstr(*op, "d=1 h") ? "1"
                                 : strstr(*op, "d=4") ? "4"
                                                      : "6")
                              : "",
                         bits & 1 ? "0.5" : "1", bits >> 1 & 1, *act, bits & 4 ? 1 : 0,
                         bits & 8 ? "bf16" : "f32");
                describe(dev, text);
            }
}

TEST(something_was_described)
{
    if (described <= LEAST_DESCRIBED)
        fail_msg("only %d operations were described", described);
}
