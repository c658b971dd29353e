/* SPDX-License-Identifier: MIT */
/* Fuzzes a safetensors file. If the input begins with '{', it is a header, NUL and data, and the
 * harness puts the length in front, because few changes of a header would keep the length right. */
#include "fuzz.h"
#include "files/safetensors.h"

/* Reads the tensor as a whole and in two pieces, which must give the same bytes, and checks that
 * reading beyond its end fails. */
static void
read_tensor(const struct qv_safetensors *file, const struct qv_safetensor *t)
{
    qv_error err;
    uint8_t *whole = malloc(t->bytes + 1), *pieces = malloc(t->bytes + 1);
    const uint64_t half = t->bytes / 2;
    FUZZ_CHECK(whole && pieces);
    FUZZ_CHECK(!qv_safetensors_read(file, t, 0, whole, t->bytes, &err));
    FUZZ_CHECK(!qv_safetensors_read(file, t, 0, pieces, half, &err));
    FUZZ_CHECK(!qv_safetensors_read(file, t, half, pieces + half, t->bytes - half, &err));
    FUZZ_CHECK(!memcmp(whole, pieces, t->bytes));
    FUZZ_CHECK(fuzz_failed(qv_safetensors_read(file, t, half, whole, t->bytes + 1, &err), &err));
    FUZZ_CHECK(fuzz_failed(qv_safetensors_read(file, t, UINT64_MAX, whole, 2, &err), &err));
    free(whole);
    free(pieces);
}

static void
check_file(const uint8_t *data, size_t size)
{
    qv_error err;
    struct qv_safetensors *file = NULL;
    const char *path = fuzz_file("model.safetensors", data, size);
    if (fuzz_failed(qv_safetensors_open(path, &file, &err), &err)) {
        FUZZ_CHECK(!file);
        return;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < qv_safetensors_count(file); i++) {
        const struct qv_safetensor *t = qv_safetensors_at(file, i);
        FUZZ_CHECK(qv_safetensors_find(file, t->name) == t);
        FUZZ_CHECK(t->n_dims >= 0 && t->n_dims <= QV_SAFETENSORS_MAX_DIMS);
        FUZZ_CHECK(t->bytes <= size);
        sum += t->bytes;
        read_tensor(file, t);
    }
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | data[i];
    FUZZ_CHECK(8 + header + sum == size); /* Every byte belongs to one of them. */
    FUZZ_CHECK(!qv_safetensors_at(file, qv_safetensors_count(file)));
    qv_safetensors_close(&file);
    FUZZ_CHECK(!file);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || *data != '{') {
        check_file(data, size);
        return 0;
    }
    const uint8_t *nul = memchr(data, 0, size);
    const size_t header = nul ? (size_t)(nul - data) : size, rest = nul ? size - header - 1 : 0;
    uint8_t *all = malloc(8 + size);
    FUZZ_CHECK(all);
    for (int i = 0; i < 8; i++)
        all[i] = (uint8_t)((uint64_t)header >> 8 * i & 0xff);
    memcpy(all + 8, data, header);
    memcpy(all + 8 + header, nul ? nul + 1 : data, rest);
    check_file(all, 8 + header + rest);
    free(all);
    return 0;
}
