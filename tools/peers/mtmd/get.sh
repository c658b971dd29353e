#!/bin/sh
# SPDX-License-Identifier: MIT
# Puts llama.cpp, as the source distribution of llama-cpp-python carries it, into FOLDER: its sources in
# FOLDER/llama.cpp (with the converter), and mtmd_encode and llama-quantize in FOLDER/bin, built for this
# machine's CPU. Needs pip, CMake, Ninja and a C++ compiler; 80 MB to download, some minutes to build.
# Usage: get.sh FOLDER [JOBS]
set -eu
version=0.3.36
folder=${1:?usage: get.sh FOLDER [JOBS]} jobs=${2:-2}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder/bin"
folder=$(cd "$folder" && pwd)
if [ ! -d "$folder/llama.cpp" ]; then
    "${PYTHON:-python3}" -m pip download "llama-cpp-python==$version" --no-binary :all: --no-deps -d "$folder"
    tar -xf "$folder/llama_cpp_python-$version.tar.gz" -C "$folder"
    mv "$folder/llama_cpp_python-$version/vendor/llama.cpp" "$folder/llama.cpp"
    rm -rf "$folder/llama.cpp/.git" # it names a repository that is not there, and CMake would wait for it
fi
cmake -S "$here" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLAMA_CPP="$folder/llama.cpp"
cmake --build "$folder/build" -j"$jobs"
ln -sf "$folder/build/mtmd_encode" "$folder/bin/"
ln -sf "$(find "$folder/build" -name llama-quantize -type f | head -n 1)" "$folder/bin/"
