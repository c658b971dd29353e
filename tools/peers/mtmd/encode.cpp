// SPDX-License-Identifier: MIT
/*
 * An image through llama.cpp's vision tower alone: mtmd_encode FILE.gguf IMAGE.ppm OUT.f32 [options]
 *     --threads N         (2)
 *     --flash-attn X      auto (as llama.cpp ships it), on or off
 *     --repeats N         timed runs after one to warm up (0: one run, not timed)
 * The image goes through mtmd's own preprocessing, whose resizing must leave its size. OUT.f32 gets the embeddings
 * [tokens, width] as f32. stdout gets one JSON object. Only what is asked of llama.cpp's internal header is used,
 * so this belongs to the release that mtmd.py names.
 */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <vector>

#include "clip-impl.h"
#include "clip-model.h"
#include "clip.h"
#include "ggml-backend.h"
#include "mtmd-image.h"

struct options {
    const char *model = nullptr, *image = nullptr, *out = nullptr;
    int threads = 2, repeats = 0;
    clip_flash_attn_type flash = CLIP_FLASH_ATTN_TYPE_AUTO;
};

static double
now_ms()
{
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

static void
write_file(const std::string &path, const void *data, size_t bytes)
{
    FILE *f = fopen(path.c_str(), "wb");
    const bool written = f && fwrite(data, 1, bytes, f) == bytes;
    if ((f && fclose(f)) || !written)
        throw std::runtime_error(path + ": cannot be written");
}

static options
parse(int argc, char **argv)
{
    options o;
    const char **const names[] = { &o.model, &o.image, &o.out };
    int n = 0;
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        if (word.rfind("--", 0) != 0 && n < 3) {
            *names[n++] = argv[i];
            continue;
        }
        if (i + 1 == argc)
            throw std::runtime_error(word + ": no such option, or it lacks its value");
        const std::string value = argv[++i];
        if (word == "--threads")
            o.threads = atoi(argv[i]);
        else if (word == "--repeats")
            o.repeats = atoi(argv[i]);
        else if (word == "--flash-attn" && (value == "auto" || value == "on" || value == "off"))
            o.flash = value == "auto" ? CLIP_FLASH_ATTN_TYPE_AUTO
                      : value == "on" ? CLIP_FLASH_ATTN_TYPE_ENABLED
                                      : CLIP_FLASH_ATTN_TYPE_DISABLED;
        else
            throw std::runtime_error(word + " " + value + ": no such option or value");
    }
    if (n < 3 || o.threads < 1 || o.repeats < 0)
        throw std::runtime_error(
            "mtmd_encode FILE.gguf IMAGE.ppm OUT.f32 [--threads N] [--flash-attn auto|on|off] "
            "[--repeats N]");
    return o;
}

static clip_image_u8
read_ppm(const char *path)
{
    int width = 0, height = 0, most = 0;
    FILE *f = fopen(path, "rb");
    if (!f || fscanf(f, "P6 %d %d %d", &width, &height, &most) != 3 || most != 255 || width < 1 ||
        height < 1 || width > 16384 || height > 16384 || fgetc(f) == EOF)
        throw std::runtime_error(std::string(path) + ": is no PPM file of 8 bits (P6, 255)");
    std::vector<uint8_t> bytes((size_t)width * (size_t)height * 3);
    const size_t got = fread(bytes.data(), 1, bytes.size(), f);
    fclose(f);
    if (got != bytes.size())
        throw std::runtime_error(std::string(path) + ": ends too early");
    clip_image_u8 image;
    image.set_size({ width, height }, false);
    image.cpy_buf(bytes);
    return image;
}

static void
encode(const options &o)
{
    clip_context_params params = {};
    params.flash_attn_type = o.flash;
    params.image_min_tokens = params.image_max_tokens = -1;
    const double began = now_ms();
    clip_ctx *tower = clip_init(o.model, params).ctx_v;
    const double load_ms = now_ms() - began;
    if (!tower)
        throw std::runtime_error(std::string(o.model) +
                                 ": llama.cpp does not load it as a vision tower");
    const clip_image_u8 image = read_ppm(o.image);
    const double resize_began = now_ms();
    mtmd_image_preproc_out made = mtmd_image_preprocessor_dyn_size(tower).preprocess(image);
    const double preprocess_ms = now_ms() - resize_began;
    if (made.entries.size() != 1 || !(made.entries[0].get_size() == image.get_size()))
        throw std::runtime_error(std::string(o.image) + ": mtmd would resize it to " +
                                 std::to_string(made.entries[0].nx()) + " by " +
                                 std::to_string(made.entries[0].ny()));
    clip_image_f32_batch batch;
    batch.entries.push_back(made.entries[0]);
    const size_t tokens = (size_t)clip_n_output_tokens(tower, &batch.entries[0]);
    const size_t width = (size_t)clip_n_mmproj_embd(tower);
    std::vector<float> embeddings;
    std::string times, cpu_times; // by the clock, and of this process on all cores
    for (int i = 0; i <= o.repeats; i++) {
        const double start = now_ms();
        const std::clock_t cpu_start = std::clock();
        embeddings.assign(tokens * width, 0); // the call wants the room there
        if (!clip_image_batch_encode(tower, o.threads, &batch, embeddings))
            throw std::runtime_error(std::string(o.image) + ": llama.cpp does not encode it");
        if (i) {
            times += (i > 1 ? ", " : "") + std::to_string(now_ms() - start);
            cpu_times += (i > 1 ? ", " : "") +
                         std::to_string((std::clock() - cpu_start) * 1e3 / CLOCKS_PER_SEC);
        }
    }
    write_file(o.out, embeddings.data(), embeddings.size() * sizeof(float));
    printf("{\"tokens\": %zu, \"width\": %zu, \"load_ms\": %.3f, \"preprocess_ms\": %.3f, \"ms\": "
           "[%s], "
           "\"cpu_ms\": [%s]}\n",
           embeddings.size() / width, width, load_ms, preprocess_ms, times.c_str(),
           cpu_times.c_str());
    clip_free(tower);
}

int
main(int argc, char **argv)
{
    try {
        const options o = parse(argc, argv);
        encode(o);
        return 0;
    } catch (const std::exception &error) {
        fprintf(stderr, "mtmd_encode: %s\n", error.what());
        return 1;
    }
}
