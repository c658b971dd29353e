/* SPDX-License-Identifier: MIT */
/* Starts the decoder that has one fault (faulty_decoder.c). */
#ifndef QV_TESTS_START_DECODER_H
#define QV_TESTS_START_DECODER_H

#include <stdlib.h>

#include "qwenvit_media.h"

static inline qv_decoder *
start(const char *fault)
{
    qv_decoder *decoder = NULL;
    qv_error err;
    setenv("QV_FAULT", fault, 1);
    if (qv_decoder_start(QV_FAULTY_DECODER, &decoder, &err))
        fail_msg("%s", err.text);
    return decoder;
}

#endif
