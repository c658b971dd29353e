/* SPDX-License-Identifier: MIT */
/* image_dump FOLDER IMAGE... decodes each image, upright and at its own size, and writes its RGB to
 * FOLDER/0, FOLDER/1 and so on, and a line of JSON about it to stdout. like=1 before FOLDER follows
 * qwen-vl-utils. media_parity.py runs it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../decoder/decoder.h"

static void
say_nothing(void *user)
{
}

static void
print_error(const qv_error *err)
{
    printf("{\"error\": \"");
    for (const char *c = err->text; *c; c++)
        printf(*c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    printf("\"}\n");
}

static qv_status
dump(qvm_reader *r, const qv_outcome *info, const char *out, qv_error *err)
{
    const size_t bytes = 3 * (size_t)info->source_width * (size_t)info->source_height;
    uint8_t *rgb = malloc(bytes);
    FILE *file = fopen(out, "wb");
    qv_status status =
        rgb && file ? qvm_reader_read(r, 0, info->source_height, info->source_width, rgb, err)
                    : qv_fail(err, QV_EIO, "no memory, or no file for it");
    if (!status && fwrite(rgb, bytes, 1, file) != 1)
        status = qv_fail(err, QV_EIO, "cannot be written");
    if (file)
        fclose(file);
    free(rgb);
    return status;
}

int
main(int argc, char **argv)
{
    atomic_bool stop;
    atomic_init(&stop, false);
    qvm_watch watch = {
        .stop = &stop, .alive = say_nothing, .asked.first_frame = true, .asked.threads = 1
    };
    const int first = argc > 1 && !strcmp(argv[1], "like=1") ? 2 : 1;
    watch.asked.like = first == 2 ? QV_LIKE_QWEN_VL_UTILS : QV_LIKE_TRANSFORMERS;
    for (int i = first + 1; i < argc; i++) {
        char out[4096];
        qv_error err = { 0 };
        qv_outcome info;
        qvm_reader r;
        const int fd = open(argv[i], O_RDONLY);
        snprintf(out, sizeof out, "%s/%d", argv[first], i - first - 1);
        qv_status status = qvm_reader_open(&r, fd, &watch, &info, &err);
        if (!status)
            status = dump(&r, &info, out, &err);
        if (status)
            print_error(&err);
        else
            printf("{\"width\": %d, \"height\": %d, \"damaged\": %lld, \"remark\": %d}\n",
                   info.source_width, info.source_height, (long long)qvm_reader_damaged(&r),
                   (int)info.remark);
        qvm_reader_close(&r);
        close(fd);
    }
    return 0;
}
