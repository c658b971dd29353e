/* SPDX-License-Identifier: MIT */
/* The clock that times everything. */
#ifndef QV_CLOCK_H
#define QV_CLOCK_H

double qv_seconds(void); /* seconds of CLOCK_MONOTONIC */

#endif
