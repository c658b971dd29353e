/* SPDX-License-Identifier: MIT */
/* What both ends of a clip need to talk to each other. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>

#include "media.h"

bool
qvm_send(int socket, const void *message, size_t n)
{
    const char *at = message;
    while (n) {
        const ssize_t sent = send(socket, at, n, QVM_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        n -= (size_t)sent;
    }
    return true;
}

bool
qvm_receive(int socket, void *message, size_t n)
{
    char *at = message;
    while (n) {
        const ssize_t got = recv(socket, at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}
