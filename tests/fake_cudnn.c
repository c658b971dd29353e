/* SPDX-License-Identifier: MIT */
/* The library that tests/fake_backend.c needs and does not find. */
#include "qwenvit.h"

QV_API int fake_cudnn(void);

int
fake_cudnn(void)
{
    return 0;
}
