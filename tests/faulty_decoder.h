/* SPDX-License-Identifier: MIT */
/* What a test and the decoder that it starts agree on. */
#ifndef QV_TESTS_FAULTY_DECODER_H
#define QV_TESTS_FAULTY_DECODER_H

#define QV_LEAKED_FD 57 /* open in the test, without FD_CLOEXEC */

#endif
