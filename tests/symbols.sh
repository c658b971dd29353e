#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that a shared library exports exactly what its headers declare. In a static library, hidden names meet
# those of the program that links it, so all of them must start with qv_ or qvm_.
# Usage: symbols.sh SHARED STATIC HEADER..., where STATIC is - if there is none
set -eu
shared=$1
static=$2
shift 2
declared=$(grep -oh '^QV_API [^;(]*(' "$@" | sed 's/.*[ *]\(qv_[a-z0-9_]*\)($/\1/' | LC_ALL=C sort)
exported=$(nm -D --defined-only "$shared" | awk '{print $3}' | LC_ALL=C sort)
[ "$exported" = "$declared" ] || {
    echo "$shared exports: $exported"
    echo "$* declares: $declared"
    exit 1
}
# (compilers add locks of OpenMP's critical sections, and tables of C++ and Objective-C)
foreign=$([ "$static" = - ] || nm -g --defined-only "$static" |
    awk 'NF == 3 && $3 !~ /^(qvm?_|\.gomp_critical_user_qv_|DW\.ref\.|\.objc_|__objc_)/ {print $3}')
[ -z "$foreign" ] || { echo "$static has: $foreign"; exit 1; }
printf '%s\n' "$exported" | wc -l
