/* SPDX-License-Identifier: MIT */
/* What a test and the decoder that it starts agree on. */
#ifndef QV_TESTS_FAULTY_DECODER_H
#define QV_TESTS_FAULTY_DECODER_H

#define QV_LEAKED_FD 57 /* open in the test, without FD_CLOEXEC */

/* A fault that a clip brings itself: the payload of a box "free" behind an MP4's end, which begins so,
 * names the fault, and is filled up with spaces. */
#define QV_PLANTED "planted: "
#define QV_PLANTED_BYTES 40

#endif
