/* SPDX-License-Identifier: MIT */
/* Removes the lock from qwenvit-decoder and its GPU process, for tools that do not work with a
 * locked-in process: strace, which shows the files that would be opened, and compute-sanitizer. */
#include "../decoder/decoder.h"

const char *__wrap_qvm_sandbox(int64_t memory, int first_fd);
const char *__wrap_qvm_sandbox_files(void);
const char *__wrap_qvm_sandbox_gpu(void);

const char *
__wrap_qvm_sandbox(int64_t memory, int first_fd)
{
    return NULL;
}

const char *
__wrap_qvm_sandbox_files(void)
{
    return NULL;
}

const char *
__wrap_qvm_sandbox_gpu(void)
{
    return NULL;
}
