#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds everything for 64-bit Arm with the libraries of Debian 13, and runs operations and golden towers under qemu: without
# SVE (NEON only), and with SVE of 256 bits. This shows that they are correct there, not fast. The decoder is
# linked, but not run: qemu does not support seccomp. Nothing is installed: apt downloads packages, once, separately.
# Usage: arm64.sh. Exit code 77: this machine cannot do it.
set -eu
cd "$(dirname "$0")/.."
. tests/debian.sh
# the preset's sysroot (cmake/aarch64-linux-gnu.cmake)
root=$PWD/build/deps/root-arm64
packages='libc6-dev libdnnl-dev libopenblas-openmp-dev libjansson-dev libcmocka-dev libxxhash-dev libseccomp-dev libjpeg-dev
    libffmpeg-nvenc-dev'
# without their own dependencies, as nothing runs them
ffmpeg='libavformat-dev libavformat61 libavcodec-dev libavcodec61 libswscale-dev libswscale8 libavutil-dev libavutil59
    libswresample-dev libswresample5'

# downloads and unpacks packages into the sysroot
make_root() (
    find_mirror trixie
    rm -rf "$root"
    mkdir -p "$root/apt/lists/partial" "$root/apt/archives/partial"
    cd "$root/apt"
    echo "deb [signed-by=$keyring] $mirror trixie main" > sources
    : > status
    apt="apt-get -qq -o Dir::Etc::SourceList=$PWD/sources -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Status=$PWD/status
        -o Dir::State::Lists=$PWD/lists -o Dir::Cache=$PWD -o APT::Sandbox::User= -o Acquire::Languages=none
        -o APT::Update::Error-Mode=any -o APT::Architecture=arm64 -o APT::Architectures::=arm64"
    $apt update && $apt install -y --download-only --no-install-recommends $packages &&
        cd archives && $apt download $ffmpeg || skip 'the packages of Debian 13 for arm64 cannot be downloaded'
    mkdir "$root/usr" "$root/usr/lib"
    ln -s usr/lib "$root/lib"
    for package in *.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
    done
    # the links that a system's alternatives would make
    libraries=$root/usr/lib/aarch64-linux-gnu
    ln -s openblas-openmp/libopenblas.so openblas-openmp/libopenblas.so.0 "$libraries/"
    ln -s ../openblas-openmp/pkgconfig/openblas.pc "$libraries/pkgconfig/"
    rm -rf "$root/apt" "$root/usr/share/doc"
    echo "$packages $ffmpeg" > "$root/done"
)

if [ "$(uname -m)" = aarch64 ]; then
    echo 'this machine is an Arm: the other stages test it'
    exit
fi
for tool in aarch64-linux-gnu-gcc qemu-aarch64-static; do
    command -v $tool > /dev/null || skip "no $tool (tools/deps.sh tests)"
done
[ "$(cat "$root/done" 2> /dev/null)" = "$packages $ffmpeg" ] || make_root || exit

fail() { echo "FAILED on $features: $*"; exit 1; }
# emulate PROGRAM...: the loader and libraries are the sysroot's
emulate() {
    echo "== on $features: $*"
    began=$(date +%s)
    qemu-aarch64-static -cpu "max,$features" -L "$root" "$@" > "$log.last" 2>&1 || { cat "$log.last"; fail "$*"; }
    grep -v "^[a-z0-9_]* on .*: mean\|MIDR_EL1" "$log.last"
    echo "took $(($(date +%s) - began)) s"
}
# expect TEXT: the last program printed it
expect() { grep -q "$1" "$log.last" || fail "it did not print: $1"; }
export OMP_WAIT_POLICY=passive
slow='this build has no OpenBLAS'
# a build without OpenBLAS differs in one source, so this one comes first
(features=sve=off log=build/arm64/no-blas.log
cmake --preset arm64 -DQV_BLAS=OFF && cmake --build --preset arm64 --target qwenvit_command
emulate build/arm64/qwenvit info tests/golden/qwen3_vl --backend cpu
expect "$slow")
cmake --preset arm64 -DQV_BLAS=ON && cmake --build --preset arm64
# on_cpu FEATURES NAME GEMM: what info says of the CPU and of the tower's GEMMs
on_cpu() (
    features=$1 log=build/arm64/$2.log
    exec > "$log"
    emulate build/arm64/tests/checkop --backend cpu --threads 2 --count 12
    expect "^cpu: Arm CPU, oneDNN .*, $2;"
    emulate build/arm64/tests/test_no_reference
    emulate build/arm64/tests/test_golden
    emulate build/arm64/qwenvit info tests/golden/qwen3_vl --backend cpu
    expect "gemm .* $3"
    expect "attention .* $3"
    ! grep "$slow" "$log.last" || fail 'it has OpenBLAS'
)
on_cpu sve=off NEON 'OpenBLAS sgemm' &
on_cpu sve256=on SVE-256 'oneDNN brg:sve_256' &&
    wait $! && status=0 || status=1
cat build/arm64/NEON.log build/arm64/SVE-256.log
[ $status = 0 ] || exit 1
echo 'cross-compiled for arm64: operations and golden towers are right under qemu, with NEON and with SVE-256'
