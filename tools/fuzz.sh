#!/bin/sh
# SPDX-License-Identifier: MIT
# fuzz.sh [SECONDS [NAME...]] builds the harnesses of tests/fuzz with clang and runs all of them, or the
# named ones, for SECONDS each (default 3600), one per core at a time. They start with the committed inputs in
# tests/fuzz/corpus and keep new ones in build/fuzz/corpus. Exit code 1: an input crashed a harness, and its
# path is printed. Minimise such an input and commit it to tests/fuzz/corpus with the fix.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-3600}
case $seconds in '' | *[!0-9]*) echo "fuzz.sh: SECONDS is $seconds; it must be an integer" >&2; exit 2 ;; esac
[ $# = 0 ] || shift
names=${*:-$(ls tests/fuzz/corpus)}
build=build/fuzz
cmake -S . -B $build -G Ninja -DCMAKE_C_COMPILER="${CC:-clang}" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DQV_FUZZ=ON -DQV_CPU=OFF -DQV_TOOLS=OFF > $build.log 2>&1 || { cat $build.log; exit 4; }
cmake --build $build --target $(printf 'fuzz_%s ' $names)

# sizes in inputs are hostile: an allocation that fails must return NULL, not end the harness
export ASAN_OPTIONS=allocator_may_return_null=1:max_allocation_size_mb=1024 UBSAN_OPTIONS=print_stacktrace=1
export build seconds
found=$build/found
mkdir -p $found
printf '%s\n' $names | xargs -P "$(nproc)" -I NAME sh -c '
    mkdir -p $build/corpus/NAME
    $build/tests/fuzz_NAME $build/corpus/NAME tests/fuzz/corpus/NAME -dict=tests/fuzz/words.dict \
        -max_total_time=$seconds -max_len=4096 -timeout=60 -report_slow_units=60 -rss_limit_mb=1500 \
        -malloc_limit_mb=1000000 -print_final_stats=1 -artifact_prefix=$build/found/NAME- > $build/NAME.log 2>&1
    printf "%-14s exit %s, %s\n" NAME $? "$(grep number_of_executed $build/NAME.log)"' || true
[ -z "$(ls $found)" ] || { ls -d $found/*; exit 1; }
