/* SPDX-License-Identifier: MIT */
/* Starts decoders with one fault each. They are stopped at the end of the test. */
#pragma once

#include <stdlib.h>

#include "qwenvit_clips.h"

static inline void
stop_decoder(void *decoder)
{
    qv_decoder_stop(&(qv_decoder *){ decoder });
}

static inline qv_decoder *
start_with(const char *program, const char *variable, const char *fault)
{
    qv_decoder *decoder = NULL;
    setenv(variable, fault, 1);
    assert_ok(qv_decoder_start(program, &decoder, ERR));
    return test_ends(decoder, stop_decoder);
}

#ifdef QV_FAULTY_DECODER /* faulty_decoder.c */
static inline qv_decoder *
start(const char *fault)
{
    return start_with(QV_FAULTY_DECODER, "QV_FAULT", fault);
}
#endif

#ifdef QV_SOFTWARE_GPU /* software_nvdec.c */
static inline qv_decoder *
start_gpu(const char *fault)
{
    return start_with(QV_SOFTWARE_GPU, "QV_GPU_FAULT", fault);
}
#endif
