/* SPDX-License-Identifier: MIT */
/* Replaces the GPU process in a build without the headers of NVIDIA's decoders. */
#include "nvdec.h"

static const qvm_gpu_hello none = { .text =
                                        "this build has no NVDEC support (no ffnvcodec headers)" };

const char *
qvm_no_nvdec(void)
{
    return none.text;
}

int
qvm_gpu_process_run(int socket, const char *number)
{
    (void)number;
    qvm_send(socket, &none, sizeof none);
    return 1;
}
