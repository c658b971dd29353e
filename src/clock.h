/* SPDX-License-Identifier: MIT */
/* The clock that times everything. */
#pragma once

double qv_seconds(void); /* seconds of CLOCK_MONOTONIC */
