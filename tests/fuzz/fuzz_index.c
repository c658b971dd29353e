/* SPDX-License-Identifier: MIT */
/* Fuzzes the model.safetensors.index.json of a folder with two shards, a link to one of them, and a
 * link to nothing. */
#include <jansson.h>

#include "fuzz.h"
#include "files/safetensors.h"

static void
write_shard(const char *name, const char *first, const char *second)
{
    char text[256] = { 0 };
    const int n = snprintf(text + 8, sizeof text - 8,
                           "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                           "\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}",
                           first, second);
    text[0] = (char)n;
    fuzz_file(name, text, 8 + (size_t)n + 6);
}

static void
make_folder(void)
{
    write_shard("a.safetensors", "a", "both");
    write_shard("b.safetensors", "b", "both");
    FUZZ_CHECK(!symlink("b.safetensors", fuzz_path("link.safetensors")));
    FUZZ_CHECK(!symlink("../blobs/nothing", fuzz_path("dangling.safetensors")));
    FUZZ_CHECK(!mkfifo(fuzz_path("fifo.safetensors"), 0600));
}

static void
look_up(struct qv_checkpoint *checkpoint, const char *name)
{
    qv_error err;
    const struct qv_safetensor *tensor = NULL;
    const struct qv_safetensors *file = NULL;
    uint8_t bytes[8];
    if (fuzz_failed(qv_checkpoint_find(checkpoint, name, &tensor, &file, &err), &err)) {
        FUZZ_CHECK(!tensor && !file);
        return;
    }
    FUZZ_CHECK(!tensor == !file);
    if (!tensor)
        return;
    FUZZ_CHECK(!strcmp(tensor->name, name) && tensor->bytes <= sizeof bytes);
    FUZZ_CHECK(!qv_safetensors_read(file, tensor, 0, bytes, tensor->bytes, &err));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MOST_NAMES = 64 };
    qv_error err;
    struct qv_checkpoint *checkpoint = NULL;
    if (!*fuzz_folder)
        make_folder();
    fuzz_file("model.safetensors.index.json", data, size);
    if (fuzz_failed(qv_checkpoint_open(fuzz_folder, &checkpoint, &err), &err)) {
        FUZZ_CHECK(!checkpoint);
        return 0;
    }
    json_t *index = json_loadb((const char *)data, size, 0, NULL), *value;
    const char *name;
    int n = 0;
    json_object_foreach(json_object_get(index, "weight_map"), name, value)
    {
        FUZZ_CHECK(json_is_string(value) && !strchr(json_string_value(value), '/'));
        if (n++ < MOST_NAMES)
            look_up(checkpoint, name);
    }
    look_up(checkpoint, "in no index");
    json_decref(index);
    qv_checkpoint_close(&checkpoint);
    FUZZ_CHECK(!checkpoint);
    return 0;
}
