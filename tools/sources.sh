#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds from source the libraries that a system lacks or has in too old a version, for wheels and for deps.sh.
# Usage: sources.sh onednn|nvcodec|ffmpeg-5|ffmpeg-6|ffmpeg-7|ffmpeg-8|ffmpeg-9 PREFIX
# Each source is pinned: a commit of its repository, or the SHA-256 of its archive. Only oneDNN, where its repository
# cannot be reached, is whatever version Debian's unstable has, verified by Debian's signature.
set -eu
what=${1:?usage: sources.sh NAME PREFIX} prefix=${2:?usage: sources.sh NAME PREFIX}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# commit URL SHA checks out that commit in $work/source
commit() {
    git init -q "$work/source" && git -C "$work/source" fetch -q --depth 1 "$1" "$2" &&
        git -C "$work/source" checkout -q FETCH_HEAD
}
# sid PACKAGE VERSION unpacks unstable's source of PACKAGE, VERSION or newer, in $work/source: without Debian's patches,
# which give the library another soname. apt's own lists stay as they are.
sid() {
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sed q)
    [ -n "$mirror" ] || { echo "sources.sh: apt knows no Debian mirror for $1" >&2; return 1; }
    mkdir -p "$work/lists/partial" "$work/unpacked"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" > "$work/sid.list"
    cat > "$work/apt.conf" << END
Dir { Etc { sourcelist "$work/sid.list"; sourceparts "/dev/null"; }; State::lists "$work/lists"; };
Dir::Cache { pkgcache ""; srcpkgcache ""; };
END
    (cd "$work/unpacked" && export APT_CONFIG="$work/apt.conf" && apt-get -q --error-on=any update &&
        apt-get -q --only-source --download-only source "$1" &&
        dpkg-source --skip-patches -x ./*.dsc "$work/source") || return
    version=$(dpkg-parsechangelog -l "$work/source/debian/changelog" -S Version)
    dpkg --compare-versions "$version" ge "$2" ||
        { echo "sources.sh: unstable has $1 $version; $2 or newer is needed" >&2; return 1; }
}
# LGPL: no option that changes FFmpeg's license, and no automatically detected library. The source stays next to
# the result.
ffmpeg() { # VERSION SHA-256 [configure's options]
    curl -sSfL -o "$work/ffmpeg.tar.xz" "https://ffmpeg.org/releases/ffmpeg-$1.tar.xz"
    echo "$2  $work/ffmpeg.tar.xz" | sha256sum -c - > /dev/null
    tar -xJf "$work/ffmpeg.tar.xz" -C "$work"
    version=$1; shift 2
    (cd "$work/ffmpeg-$version" && ./configure --prefix="$prefix" --enable-shared --disable-static --disable-programs \
        --disable-doc --disable-autodetect --disable-x86asm --disable-avdevice --disable-avfilter "$@" &&
        make -j"$(nproc)" install)
    mkdir -p "$prefix/source" && cp "$work/ffmpeg.tar.xz" "$work/ffmpeg-$version/COPYING.LGPLv2.1" "$prefix/source/"
}

case $what in
onednn) # 3.12.4; only the primitives that cpu/ calls
    commit https://github.com/uxlfoundation/oneDNN 3695f3309a7c9a3c9c19810048df2f5c3693c1b7 ||
        { rm -rf "$work/source" && sid onednn 3.12; }
    cmake -S "$work/source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
        -DCMAKE_INSTALL_LIBDIR=lib -DONEDNN_BUILD_TESTS=OFF -DONEDNN_BUILD_EXAMPLES=OFF -DONEDNN_BUILD_GRAPH=OFF \
        -DONEDNN_ENABLE_WORKLOAD=INFERENCE "-DONEDNN_ENABLE_PRIMITIVE=CONVOLUTION;MATMUL;REORDER"
    cmake --build "$work/build" -j"$(nproc)" --target install
    rm -rf "$prefix/share/doc/onednn"
    mv "$prefix/share/doc/dnnl" "$prefix/share/doc/onednn" # installing and the wheel look for the license there
    ;;
nvcodec) # n13.0.19.0: headers only
    commit https://github.com/FFmpeg/nv-codec-headers e844e5b26f46bb77479f063029595293aa8f812d
    make -C "$work/source" PREFIX="$prefix" install
    ;;
# no release of 5 and 6 fixes MagicYUV's decoder (CVE-2026-8461), so they are built without it
ffmpeg-5) ffmpeg 5.1.9 d9b593bb2ba93d4b50f74177e0cdcd41747e708596367deed0c30348a71dd176 --disable-decoder=magicyuv ;;
ffmpeg-6) ffmpeg 6.1.4 a231e3d5742c44b1cdaebfb98ad7b6200d12763e0b6db9e1e2c5891f2c083a18 --disable-decoder=magicyuv ;;
ffmpeg-7) ffmpeg 7.1.5 de668509caf9e35e3cd162473441fdb29538c6d96ed080292b3cf9e6fc5d558f ;;
ffmpeg-8) ffmpeg 8.1.2 464beb5e7bf0c311e68b45ae2f04e9cc2af88851abb4082231742a74d97b524c ;;
ffmpeg-9) ffmpeg 9.0.2 8c3850283eb25fa026482078a04051e0be17347b09ef81a0849bec15a96e002e ;;
*) echo "sources.sh: unknown source \"$what\"" >&2; exit 2 ;;
esac
