#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that tools/deps.sh accepts a prefix's contents as installed, and installs the rest. Stand-ins for dpkg-query, id and
# sudo play a system without packages, and a user who is not root; nothing is installed. Usage: deps.sh SOURCE WORK
set -eu
source=$1 work=$2
rm -rf "$work" && mkdir -p "$work/bin" "$work/tools" && cd "$work"
cp "$source/tools/deps.sh" tools
plays() { printf '#!/bin/sh\n%s\n' "$2" > "bin/$1" && chmod +x "bin/$1"; }
plays dpkg-query 'exit 1'
plays id 'echo 1000'
plays sudo :
fail() { echo "FAILED: $*"; cat log; exit 1; }
# asks LIST VARIABLE=VALUE: deps.sh wants to install LIST, or nothing
asks() {
    wanted=${1:+"installing: $1"}
    shift
    env -u CONDA_PREFIX -u PKG_CONFIG_PATH -u CMAKE_PREFIX_PATH PATH="$PWD/bin:$PATH" "$@" sh tools/deps.sh > log 2>&1 ||
        fail "$*: exit code $?"
    [ "$(cat log)" = "$wanted" ] || fail "$*: wanted \"$wanted\""
}
conda=$PWD/conda
has() { for file; do mkdir -p "$conda/$(dirname "$file")" && : > "$conda/$file"; done; }
has include/oneapi/dnnl/dnnl_version.h
printf '#define DNNL_VERSION_%s\n' 'MAJOR 4' 'MINOR 0' > conda/include/oneapi/dnnl/dnnl_version.h
asks 'libc6-dev libjansson-dev libcmocka-dev libxxhash-dev libavformat-dev libavcodec-dev libswscale-dev libavutil-dev '\
'libseccomp-dev libjpeg-dev libffmpeg-nvenc-dev' CMAKE_PREFIX_PATH="$conda"
has include/jansson.h include/cmocka.h include/xxhash.h include/seccomp.h include/libavformat/avformat.h \
    include/libavcodec/avcodec.h include/libswscale/swscale.h include/libavutil/avutil.h include/ffnvcodec/dynlink_loader.h \
    "$(uname -m)-conda-linux-gnu/sysroot/usr/include/stdio.h"
asks libjpeg-dev CONDA_PREFIX="$conda"
has include/jpeglib.h
asks '' CONDA_PREFIX="$conda"
asks '' CMAKE_PREFIX_PATH="/nowhere;$conda"
asks '' CMAKE_PREFIX_PATH="$conda:/nowhere"
asks '' PKG_CONFIG_PATH="/nowhere/lib/pkgconfig:$conda/lib/pkgconfig"
