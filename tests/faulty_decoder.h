/* SPDX-License-Identifier: MIT */
/* Declarations shared by a test and the faulty decoder that it starts. */
#pragma once

#define QV_LEAKED_FD 57 /* This descriptor is open in the test, without FD_CLOEXEC. */

/* A fault contained in a clip. It is the payload of a "free" box after the end of an MP4 file. The
 * payload begins with this text, names the fault, and is filled up with spaces. */
#define QV_PLANTED "planted: "
#define QV_PLANTED_BYTES 40
