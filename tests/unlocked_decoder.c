/* SPDX-License-Identifier: MIT */
/* Takes the lock off qwenvit-decoder and its GPU process, for tools that a locked-in process can
 * tell nothing: strace sees what would be opened, and compute-sanitizer reports. */
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
