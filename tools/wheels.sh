#!/bin/sh
# SPDX-License-Identifier: MIT
# The steps of .github/workflows/wheels.yml besides cibuildwheel.
#   wheels.sh before-all: installs the wheel's dependencies in manylinux's image. ffmpeg/ has the FFmpegs.
#   wheels.sh repair WHEEL FOLDER: tags the wheel; the system's and NVIDIA's libraries stay outside.
#   wheels.sh try FOLDER [FFMPEG...]: installs FOLDER's wheel for this Python, and encodes a clip with each of
#     these FFmpegs; without one the command must name what is missing.
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in
before-all)
    dnf install -qy epel-release
    dnf install -qy --enablerepo=crb jansson-devel libjpeg-turbo-devel libseccomp-devel ninja-build xxhash-devel
    mkdir -p /opt/ffmpeg
    for f in ffmpeg/*.tar; do tar -C /opt/ffmpeg -xf "$f"; done
    sh tools/sources.sh nvcodec /opt/nvcodec
    sh tools/sources.sh onednn "$PWD/build/deps/onednn"
    ;;
repair)
    auditwheel repair --exclude 'libav*' --exclude 'libsw*' --exclude 'libcu*' --exclude 'libqwenvit*' -w "$3" "$2"
    ;;
try)
    wheels=$(realpath "$2") golden=$PWD/tests/golden/qwen3_vl
    shift 2
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    python3 -m venv "$work/env"
    "$work/env/bin/pip" install -q --disable-pip-version-check --no-index --no-deps --find-links "$wheels" qwenvit
    cd "$work"
    command=env/bin/qwenvit
    if ! /sbin/ldconfig -p | grep -q libavformat; then
        status=0
        $command info env/bin/python 2> error || status=$?
        [ "$status" = 4 ] && grep 'FFmpeg libraries may be missing' error || { cat error; exit 1; }
    fi
    for root; do
        major=${root##*/}
        export LD_LIBRARY_PATH="$root/lib"
        $command --version | grep "FFmpeg" | grep -F " $major." # the version that its decoder found
        $command synth --clip clip.mp4
        $command encode clip.mp4 --model "$golden" -o "clip-$major.safetensors"
        echo "FFmpeg $major: a clip was encoded"
    done
    ;;
*) echo 'usage: wheels.sh before-all | repair WHEEL FOLDER | try FOLDER [FFMPEG...]' >&2; exit 2 ;;
esac
