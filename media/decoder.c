/* SPDX-License-Identifier: MIT */
/* qwenvit-decoder: decodes one clip for the program that started it, and can do nothing else.
 * usage: qwenvit-decoder BYTES, with the descriptors that process.c gives it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "media.h"

int
main(int argc, char **argv)
{
    char *end = NULL;
    const long long memory = argc == 2 ? strtoll(argv[1], &end, 10) : 0;
    if (memory < 1 || *end) {
        fputs("qwenvit-decoder is started by libqwenvit_media, for one clip each\n", stderr);
        return 2;
    }
    const char *failed = qvm_sandbox(memory);
    if (failed) {
        qvm_event event;
        memset(&event, 0, sizeof event);
        event.kind = QVM_END;
        event.status = QV_EBACKEND;
        snprintf(event.text, sizeof event.text, "the decoder cannot be locked in: %s: %s", failed,
                 strerror(errno));
        return qvm_send(QVM_FD_SOCKET, &event, sizeof event) ? 0 : 1;
    }
    qvm_serve(&(qvm_session){ QVM_FD_SOCKET, QVM_FD_CLIP, QVM_FD_SHARED, true });
    return 0;
}
