/* SPDX-License-Identifier: MIT */
/* Fuzzes preprocessor_config.json, video_preprocessor_config.json and processor_config.json, with a
 * good config.json. NUL bytes separate the three in the input. A file whose part is empty is not
 * written. */
#include <math.h>

#include "towers/read_config.h"
#include "fuzz.h"

static const char config[] =
    "{\"model_type\":\"qwen3_vl\",\"vision_config\":{\"depth\":3,\"hidden_size\":32,"
    "\"num_heads\":2,\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[0]}}";

static void
check(const qv_preprocess *p, bool clips)
{
    FUZZ_CHECK(p->min_pixels > 0 && p->min_pixels <= p->max_pixels);
    FUZZ_CHECK(p->patch_size == 16 && p->temporal_patch_size == 2 && p->merge_size == 2);
    for (int i = 0; i < 3; i++)
        FUZZ_CHECK(isfinite(p->mean[i]) && isfinite(p->std[i]) && p->std[i] > 0);
    if (clips)
        FUZZ_CHECK(p->fps > 0 && p->min_frames > 0 && p->min_frames <= p->max_frames);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = { "preprocessor_config.json",
                                         "video_preprocessor_config.json",
                                         "processor_config.json" };
    qv_error err;
    struct qv_config c;
    if (!*fuzz_folder)
        fuzz_file("config.json", config, sizeof config - 1);
    for (int i = 0; i < 3; i++) {
        const uint8_t *end = size ? memchr(data, 0, size) : NULL;
        const size_t n = end ? (size_t)(end - data) : size;
        if (n)
            fuzz_file(names[i], data, n);
        else
            unlink(fuzz_path(names[i]));
        data += end ? n + 1 : n;
        size -= end ? n + 1 : n;
    }
    if (fuzz_failed(qv_config_read(fuzz_folder, &c, &err), &err))
        return 0;
    check(&c.image, false);
    check(&c.video, true);
    return 0;
}
