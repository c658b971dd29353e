/* SPDX-License-Identifier: MIT */
/* WRAPPED(type, call, (parameters)) { ... } defines the linker's replacement of a call (--wrap);
 * __real_CALL is the call itself. */
#pragma once

#define WRAPPED(type, call, parameters)                                                            \
    type __real_##call parameters;                                                                 \
    type __wrap_##call parameters;                                                                 \
    type __wrap_##call parameters
