/* SPDX-License-Identifier: MIT */
/* Declares what a test and the faulty decoder that it starts agree on. */
#pragma once

#define QV_LEAKED_FD 57 /* This descriptor is open in the test, without FD_CLOEXEC. */

/* A fault that a clip brings itself. It is the payload of a box "free" behind the end of an MP4
 * file. The payload begins with this text, names the fault, and is filled up with spaces. */
#define QV_PLANTED "planted: "
#define QV_PLANTED_BYTES 40
