/* SPDX-License-Identifier: MIT */
/* On a GPU: makes decoders of all sizes in a process that is locked down like the GPU process. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../decoder/nvcuvid.h"

static const struct {
    unsigned width, height;
} sizes[] = { { 176, 144 }, { 1280, 720 }, { 1920, 1088 }, { 3840, 2160 }, { 4096, 4096 } };
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Returns how many sizes have decoders, or 100 if the GPU cannot be opened. It prints nothing,
 * since a locked-in process may write to no file. */
static int
count_decoders(void)
{
    qvm_nvdec *gpu = NULL;
    int made = 0;
    if (qvm_nvdec_load(&gpu) || qvm_sandbox_files() || qvm_nvdec_open(gpu, 0) ||
        qvm_sandbox_gpu() || gpu->call.cuCtxPushCurrent(gpu->context))
        return 100;
    for (int codec = 0; codec < QVM_NVCODECS; codec++)
        for (int i = 0; i < SIZES; i++) {
            const struct qvm_nvshape shape = { qvm_nvcodecs[codec].codec, 0, sizes[i].width,
                                               sizes[i].height, 9 };
            struct qvm_nvdecoder decoder;
            if (qvm_nvdecoder_take(gpu, &shape, &decoder))
                continue;
            made++;
            qvm_nvdecoder_give_back(gpu, &decoder);
        }
    return made;
}

int
main(void)
{
    int how = 0;
    const pid_t pid = fork();
    if (!pid)
        _exit(count_decoders());
    waitpid(pid, &how, 0);
    const int made = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
    printf("decoders under the lock: %d of %d\n", made, QVM_NVCODECS * SIZES);
    return made != QVM_NVCODECS * SIZES;
}
