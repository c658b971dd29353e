/* SPDX-License-Identifier: MIT */
/* Prints the header of a safetensors file. */
#include <string.h>

#include "safetensors.h"

void
qv_header_begin(struct qv_text *t, const char *const (*metadata)[2], size_t n)
{
    qv_text_add(t, "12345678{", 9); /* qv_header_end replaces the digits with the length */
    for (size_t i = 0; i < n; i++) {
        qv_text_say(t, i ? ",\"" : "\"__metadata__\":{\"");
        qv_text_escape(t, metadata[i][0], strlen(metadata[i][0]));
        qv_text_add(t, "\":\"", 3);
        qv_text_escape(t, metadata[i][1], strlen(metadata[i][1]));
        qv_text_add(t, "\"", 1);
    }
    if (n)
        qv_text_add(t, "}", 1);
}

void
qv_header_tensor(struct qv_text *t, const char *key, const char *name, const char *dtype,
                 int n_dims, const int64_t *shape, uint64_t begin, uint64_t end)
{
    qv_text_say(t, t->n == 9 ? "\"" : ",\"");
    if (key) {
        qv_text_escape(t, key, strlen(key));
        qv_text_add(t, "/", 1);
    }
    qv_text_escape(t, name, strlen(name));
    qv_text_say(t, "\":{\"dtype\":\"%s\",\"shape\":[", dtype);
    for (int i = 0; i < n_dims; i++)
        qv_text_say(t, "%s%lld", i ? "," : "", (long long)shape[i]);
    qv_text_say(t, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                (unsigned long long)end);
}

bool
qv_header_end(struct qv_text *t, size_t bytes)
{
    qv_text_add(t, "}", 1);
    if (t->lost || t->n > bytes)
        return false;
    qv_text_pad(t, ' ', bytes - t->n);
    for (int i = 0; i < 8 && !t->lost; i++)
        t->at[i] = (char)((uint64_t)(bytes - 8) >> 8 * i & 0xff);
    return !t->lost;
}
