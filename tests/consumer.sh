#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests an installed qwenvit as its users meet it: it is installed and moved elsewhere, and a program is built
# against it by find_package and by pkg-config, shared and static, and run; then the Debian packages are
# tested. If the build has a CUDA backend, each of these must find it.
# Usage: consumer.sh BUILD MODEL WORK COMPILER
set -eu
build=$1 model=$2 work=$3 cc=$4
consumer=$(cd "$(dirname "$0")/consumer" && pwd)
source=$(cd "$consumer/../.." && pwd)
unset LD_LIBRARY_PATH LD_RUN_PATH # the loader does not know the prefix
rm -rf "$work" && mkdir -p "$work" && cd "$work"

fail() { echo "FAILED: $*"; exit 1; }
cuda=
[ ! -e "$build/libqwenvit_cuda.so" ] || cuda=yes
# finds_cuda TEXT: the output of a program that asked for a backend names CUDA, or the reason why there is no GPU
finds_cuda() {
    [ -z "$cuda" ] || grep -qE 'backend +cuda|no NVIDIA' "$1" || {
        cat "$1"
        fail 'no CUDA backend found'
    }
}
# uses PROGRAM shared|static [DECODER BACKENDS]: the program runs, and loads our libraries only if shared
uses() {
    "$1" "$model" ${3:+"$3" "$4"} > said.txt
    grep -q '^QV_OK' said.txt || fail "$1 does not run"
    finds_cuda said.txt
    linked=static
    ! readelf -d "$1" | grep -q 'NEEDED.*libqwenvit' || linked=shared
    [ $linked = "$2" ] || fail "$1 is linked $linked"
}
# alone WAY FOLDER: runs, for each library, the program that is linked with only that library
alone() {
    bad=
    for library in qwenvit cache; do
        "$2/alone_${library}_$1" > said.txt 2>&1 && grep -q '^QV_OK' said.txt ||
            { bad="$bad $library"; cat said.txt; }
    done
    [ -z "$bad" ] || fail "$1, linked alone ($2):$bad"
}
# clean FOLDER: the files that were installed there name neither the build folder nor the sources nor the
# prefix that was intended, because they find one another by where they are
configured=$(sed -n 's/^CMAKE_INSTALL_PREFIX:PATH=//p' "$build/CMakeCache.txt")
clean() {
    sh "$source/tests/shipped.sh" "$1" "$build" "$source" "$work" "$configured/lib" \
        "$configured/libexec" || fail "what is installed in $1"
}

cmake --install "$build" --prefix "$work/first" > install.log
mv first moved
prefix=$work/moved
clean moved
moved/bin/qwenvit info "$model" > said.txt
grep -q 'vision tower' said.txt || fail 'the installed command does not run'
finds_cuda said.txt
moved/bin/qwenvit bench gemm --backend ref --rows 1 --repeats 1 --json --dtype f32 > said.txt ||
    fail 'the installed command has no benches'

for file in share/bash-completion/completions/qwenvit share/qwenvit/valgrind.supp; do
    [ -s "moved/$file" ] || fail "$file is not installed"
done
consumer=$prefix/share/doc/qwenvit/example # what is installed can be built as it is
cmake -S "$consumer" -B cmake -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" > cmake.log
cmake --build cmake >> cmake.log
uses cmake/consumer_shared shared
uses cmake/consumer_static static "$(sed -n 's/^-- decoder: //p' cmake.log)" \
    "$(sed -n 's/^-- backends: //p' cmake.log)"
alone shared cmake
alone static cmake

# lacks COMPONENT WORDS: CMake reports WORDS if the component is required
mkdir lacking
lacks() {
    printf 'cmake_minimum_required(VERSION 3.22)\nproject(lacking C)\nfind_package(qwenvit REQUIRED COMPONENTS %s)\n' \
        "$1" > lacking/CMakeLists.txt
    ! cmake -S lacking -B lacking/build -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" > said.txt 2>&1 ||
        fail "a component $1 was found"
    tr -s ' \n' ' ' < said.txt | grep -qF "unknown component $1 of qwenvit; $2" || { cat said.txt; fail "no word of $1"; }
}
lacks decoders 'components are cache and static'

pc=$(find "$prefix" -name pkgconfig)
export PKG_CONFIG_PATH="$pc"
libs=${pc%/pkgconfig}
# builds OUT LINE: with that line of docs/c.md
cp "$consumer/main.c" mine.c
builds() {
    line=$(sed -n 's/^    cc \(mine.c \)/\1/p' "$source/docs/c.md" | sed -n "$2p")
    eval "$cc -std=c11 -Wall -Werror -o $1 $line" || fail "docs/c.md: cc $line"
}
# only the shared libraries, as on a machine without the packages they were built on
(export PKG_CONFIG_LIBDIR="$pc"; builds pc_loader 1; builds pc_shared 2)
uses ./pc_shared shared
! ./pc_loader "$model" > said.txt 2>&1 || fail 'the loader finds the libraries without a path'
LD_LIBRARY_PATH=$libs uses ./pc_loader shared
# ldconfig knows them by the names that programs ask for
echo "$libs" > ld.conf
PATH=$PATH:/sbin:/usr/sbin ldconfig -X -f ld.conf -C ld.cache && PATH=$PATH:/sbin ldconfig -p -C ld.cache > said.txt
for name in $(readelf -d pc_loader | sed -n 's/.*NEEDED.*\[\(libqwenvit.*\)\]/\1/p'); do
    grep -q "$name " said.txt || fail "ldconfig does not find $name"
done
# a relative path to the libraries finds the decoder too
LD_LIBRARY_PATH=${libs#"$work"/} ./pc_loader "$model" > said.txt && grep -q '^QV_OK' said.txt || fail 'a relative LD_LIBRARY_PATH'
# the environment names another decoder, and a wrong name is reported
decoder=$prefix/libexec/qwenvit/qwenvit-decoder
QWENVIT_DECODER=$decoder moved/bin/qwenvit info image.ppm > said.txt || fail 'QWENVIT_DECODER'
! QWENVIT_DECODER=/nowhere moved/bin/qwenvit info image.ppm > said.txt 2>&1 || fail 'a QWENVIT_DECODER that is missing'
grep -q /nowhere said.txt || { cat said.txt; fail 'the error does not name QWENVIT_DECODER'; }
builds pc_static 3
uses ./pc_static static "$(pkg-config --variable=libexecdir qwenvit)/qwenvit-decoder" \
    "$(pkg-config --variable=backendsdir qwenvit)"

mkdir pc
for library in qwenvit cache; do
    name=$(echo $library | tr a-z A-Z) package=qwenvit
    [ $library = qwenvit ] || package=qwenvit_$library
    $cc -std=c11 -Wall -Werror -DALONE=$name "$consumer/alone.c" -o pc/alone_${library}_shared \
        -Wl,--as-needed $(PKG_CONFIG_LIBDIR=$pc pkg-config --cflags --libs $package) -Wl,-rpath,"$libs"
    $cc -std=c11 -Wall -Werror -DALONE=$name "$consumer/alone.c" -o pc/alone_${library}_static \
        $(pkg-config --cflags --libs --static $package | sed 's/-l\(qwenvit[a-z_]*\)/-l:lib\1.a/g')
done
alone shared pc
alone static pc

# names LIBRARY: the libraries that it needs
names() { readelf -d "$@" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p'; }
! names "$libs/libqwenvit.so" | grep -E 'lib(av|sw)[a-z]*\.|libjpeg' || fail 'libqwenvit needs FFmpeg or libjpeg'
for program in qwenvit qwenvit-bench; do # all of FFmpeg is in the decoder's process, and what it needs not on every machine
    ! names "$prefix/bin/$program" | grep -E 'lib(av|sw)[a-z]*\.|libjpeg' || fail "$program needs FFmpeg or libjpeg"
done
! ldd pc/alone_cache_shared | grep -E 'dnnl|lib(av|sw)[a-z]*\.|libjpeg' || fail 'reading caches needs more than jansson'

{ command -v dpkg-shlibdeps && command -v file; } > /dev/null || {
    echo 'no dpkg-dev or no file here: no Debian packages'
    exit 0
}
cpack --config "$build/CPackConfig.cmake" -G DEB -B deb > deb.log 2>&1 || { cat deb.log; exit 1; }
for name in qwenvit qwenvit-dev ${cuda:+qwenvit-cuda}; do
    file=$(find deb -maxdepth 1 -name "${name}_*.deb")
    dpkg-deb -x "$file" "root-$name" && dpkg-deb -I "$file" > "$name.control"
    clean "root-$name"
done
# has PACKAGE FILE...
has() {
    name=$1; shift
    for f in "$@"; do
        [ -n "$(find "root-$name/usr" -path "*/$f")" ] || fail "$name has no $f"
    done
}
has qwenvit bin/qwenvit bin/qwenvit-bench libexec/qwenvit/qwenvit-decoder 'libqwenvit.so.*' \
    'libqwenvit_cache.so.*' doc/qwenvit/copyright
has qwenvit-dev include/qwenvit.h include/qwenvit_conv3d.h include/qwenvit_clips.h include/qwenvit_cache.h \
    libqwenvit.a libqwenvit_cache.a \
    libqwenvit.so pkgconfig/qwenvit.pc cmake/qwenvit/qwenvit-config.cmake
grep -q 'Depends:.*libavformat.*libjansson4.*libjpeg.*libseccomp2' qwenvit.control || fail 'what qwenvit depends on'
grep -q 'Depends:.*qwenvit (= ' qwenvit-dev.control || fail 'what qwenvit-dev depends on'
! grep -E 'Depends:.*(cuda|cublas|cudnn)' qwenvit.control || fail 'the package qwenvit depends on CUDA'
root-qwenvit/usr/bin/qwenvit info "$model" > said.txt || fail 'the packaged command does not run'
if [ -n "$cuda" ]; then
    [ -z "$(find root-qwenvit root-qwenvit-dev -name '*cuda*')" ] || fail 'CUDA outside of qwenvit-cuda'
    has qwenvit-cuda qwenvit/libqwenvit_cuda.so
    grep -q 'Depends:.*qwenvit (= ' qwenvit-cuda.control || fail 'what qwenvit-cuda depends on'
    grep -q 'Recommends:.*libcublas-.*libcudnn9-' qwenvit-cuda.control || fail 'cuDNN is not recommended'
    dpkg-deb -x "$(find deb -maxdepth 1 -name 'qwenvit-cuda_*.deb')" root-qwenvit # both packages in one tree
    root-qwenvit/usr/bin/qwenvit info "$model" --backend cuda > said.txt 2>&1 || [ $? = 4 ] ||
        fail 'the packaged command with qwenvit-cuda'
    finds_cuda said.txt
fi
rm -rf "$work"
