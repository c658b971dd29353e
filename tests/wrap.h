/* SPDX-License-Identifier: MIT */
/* WRAPPED(type, call, (parameters)) { ... } is what the linker puts in place of a call (--wrap);
 * __real_CALL is the call itself. */
#pragma once

#define WRAPPED(type, call, parameters)                                                            \
    type __real_##call parameters;                                                                 \
    type __wrap_##call parameters;                                                                 \
    type __wrap_##call parameters
