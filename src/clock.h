/* SPDX-License-Identifier: MIT */
/* The clock used for all timing. */
#pragma once

double qv_seconds(void); /* seconds of CLOCK_MONOTONIC */
