/* SPDX-License-Identifier: MIT */
/* The clock by which everything is timed. */
#ifndef QV_CLOCK_H
#define QV_CLOCK_H

double qv_seconds(void); /* of CLOCK_MONOTONIC */

#endif
