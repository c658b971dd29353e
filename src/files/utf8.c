/* SPDX-License-Identifier: MIT */
#include "utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *
qv_utf8_text(const char *bytes)
{
    char *text = malloc(3 * strlen(bytes) + 1), *to = text;
    if (!text)
        return NULL;
    while (*bytes) {
        const size_t n = qv_utf8_bytes(bytes);
        if (n)
            memcpy(to, bytes, n);
        else
            snprintf(to, 4, "%%%02X", (unsigned)(unsigned char)*bytes);
        to += n ? n : 3;
        bytes += n ? n : 1;
    }
    *to = 0;
    return text;
}
