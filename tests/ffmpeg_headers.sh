#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks the syntax of all sources that decode, and of tests and tools that include FFmpeg's headers, with the headers of
# Debian 12, 13 and unstable: FFmpeg 5.1, 7.1 and the newest. Warnings are errors. Nothing is built or installed: apt downloads
# the packages of headers into CACHE, once. Usage: ffmpeg_headers.sh CACHE [COMPILER]. Exit code 77: it cannot download them.
set -eu
mkdir -p "$1"
cache=$(cd "$1" && pwd) cc=${2:-cc}
cd "$(dirname "$0")/.."
. tests/debian.sh

# fetch SUITE gets the headers into CACHE/SUITE, by an apt with separate lists
fetch() (
    find_mirror "$1"
    into=$cache/$1
    rm -rf "$into" && mkdir -p "$into/apt/lists/partial" "$into/apt/archives/partial" && cd "$into/apt"
    echo "deb [signed-by=$keyring] $mirror $1 main" > sources
    : > status
    apt="apt-get -qq -o Dir::Etc::SourceList=$PWD/sources -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Status=$PWD/status
        -o Dir::State::Lists=$PWD/lists -o Dir::Cache=$PWD -o APT::Sandbox::User= -o Acquire::Languages=none
        -o APT::Update::Error-Mode=any"
    $apt update && $apt download libavcodec-dev libavformat-dev libavutil-dev libswscale-dev ||
        skip "the headers of $1 cannot be downloaded"
    for package in *.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x -C "$into" ./usr/include; done
    ls libavcodec-dev_*.deb | sed -E 's/.*_([0-9]+%3a)?(.*)_.*/FFmpeg \2/' > "$into/done"
    rm -rf "$into/apt"
)

# the headers in decoder/ and tests/ that include FFmpeg's, directly or through another; then the sources
of_ffmpeg='lib(av|sw)[a-z]+/.*'
include='^#include [<"](.*/)?'
known=$of_ffmpeg
for depth in 1 2 3; do
    known="$of_ffmpeg|$(grep -lE "$include($known)[>\"]" decoder/*.h tests/*.h | sed 's,.*/,,' | paste -s -d '|')"
done
sources=$(ls decoder/*.c clips/*.c pixels/*.c && find tests tools -name '*.c' -exec grep -lE "$include($known)[>\"]" {} +)

# what a build passes or generates
mkdir -p "$cache/generated"
echo 'static const char scale_ptx[1];' > "$cache/generated/scale_ptx.h"
flags="-std=c11 -D_GNU_SOURCE= -DQV_WITH_JPEG -DQV_WITH_KERNELS=1 -I. -Iinclude -Isrc -Itests -Itools -Itools/command
    -I$cache/generated $(pkg-config --cflags jansson cmocka libjpeg libseccomp ffnvcodec)"
for path in QV_DECODER QV_FAULTY_DECODER QV_SOFTWARE_GPU QV_DECODER_NO_NVDEC QV_GOLDEN QV_ISOLATION_PAGE QVM_LIBEXEC_FROM_LIB \
    QVM_LIBEXEC_FROM_BIN; do
    flags="$flags -D$path=\"\""
done

# compile SUITE
compile() {
    headers=$(dirname "$cache/$1"/usr/include/*/libavcodec)
    $cc -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Wno-unused-parameter -Werror -isystem "$headers" $flags $sources
}
running=
for suite in bookworm trixie sid; do
    [ -e "$cache/$suite/done" ] || fetch $suite || exit
    compile $suite > "$cache/$suite/log" 2>&1 &
    running="$running $suite:$!"
done
status=0
for one in $running; do
    suite=${one%:*} result=compile
    wait "${one#*:}" || { status=1 result='DO NOT COMPILE'; }
    cat "$cache/$suite/log"
    echo "$(echo "$sources" | wc -l) sources $result with the headers of $(cat "$cache/$suite/done") ($suite)"
done
exit $status
