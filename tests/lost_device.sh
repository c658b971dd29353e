#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests a device that is lost in the middle of a list, at each of its chunks in turn. The command must report it
# and exit with code 4. Finished clips are complete, nothing is half written, and another run
# completes the list to the result of an undisturbed run.
# Usage: lost_device.sh QWENVIT MODEL DRIVER BACKENDS WORK. DRIVER is a fake driver and BACKENDS a folder with a
# fake backend (fake_backend.c).
set -eu
qwenvit=$1 model=$2 driver=$3 QWENVIT_BACKENDS=$4 work=$5
. "$(dirname "$0")/expect.sh"
rm -rf "$work" && mkdir -p "$work/driver" && cd "$work"
ln -s "$driver" driver/libcuda.so.1
LD_LIBRARY_PATH=$PWD/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export QWENVIT_BACKENDS LD_LIBRARY_PATH

# run COMMAND...: succeeds if the command did, and fails if its device was lost, which it must report once
run() {
    n=$((n + 1)) got=0
    FAKE_LOST_AFTER=$after "$@" > out.txt 2> err.txt < /dev/null || got=$?
    [ "$got" != 0 ] || return 0
    [ "$got" = 4 ] || fail "exit $got, not 4, lost after $after: $*"
    [ "$(grep -c 'the device is lost: it fell off the bus' err.txt)" = 1 ] || fail "not said once: $*"
    return 1
}

for i in 1 2 3; do # one chunk each
    { printf 'P6\n64 64\n255\n'; yes "$i pixels" | head -c 12288; } > p$i.ppm
    echo p$i.ppm >> list.txt
done
common="--model $model --backend cuda --list list.txt --min-pixels 1 --chunk-rows 16 --quiet"
encode="$qwenvit encode $common"
cache="$qwenvit cache fill $common --part-bytes 1"

mkdir whole
expect 0 '' $encode -o whole
expect 0 '3 done' $cache -o tokens
for i in 1 2 3; do expect 0 '' "$qwenvit" cache get tokens p$i.ppm -o $i.whole.safetensors; done

after=0
mkdir some
while ! run $encode -o some; do
    for file in some/*; do
        [ ! -e "$file" ] || cmp "$file" "whole/${file#some/}" || fail "$file is half written"
    done
    expect 0 '' $encode -o some
    diff -r some whole > out.txt || fail "lost after $after, run again: other files"
    rm some/*
    after=$((after + 1))
done
[ $after -ge 3 ] || fail "encoded in $after chunks: nothing was lost in the middle"

after=0
while ! run $cache -o some/$after; do
    left=$(find some/$after -name '*tmp*')
    [ -z "$left" ] || fail "lost after $after: $left stays"
    expect 0 ' 0 failed' "$qwenvit" cache status some/$after --list list.txt
    there=$(sed -n 's/.*: \([0-9]*\) ok.*/\1/p' out.txt)
    expect 0 "$((3 - there)) done" $cache -o some/$after
    grep -q "; $there already there" out.txt || fail "lost after $after: what was sealed was done again"
    expect 0 '3 keys in ' "$qwenvit" cache check some/$after --quiet
    for i in 1 2 3; do
        "$qwenvit" cache get some/$after p$i.ppm -o one.safetensors
        cmp one.safetensors $i.whole.safetensors || fail "lost after $after, run again: p$i.ppm is another"
    done
    after=$((after + 1))
done
[ $after -ge 3 ] || fail "encoded in $after chunks: nothing was lost in the middle"

# a device is lost in the middle of a bench
bench="$qwenvit bench tower --model $model --backend cuda --grid 1,4,4 --repeats 1 --no-limit --json"
expect 0 '"way":"whole call"' $bench
after=9
! run $bench || fail 'no device was lost'
rm -rf "$work"
echo "$n commands"
