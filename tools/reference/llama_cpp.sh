#!/bin/sh
# SPDX-License-Identifier: MIT
# Gets llama.cpp from the source distribution of llama-cpp-python: its sources and the converter to
# FOLDER/llama.cpp, and llama-quantize, built for this machine's CPU, to FOLDER/bin. Needs pip, CMake,
# Ninja and a C++ compiler; 80 MB to download, some minutes to build.
# Usage: llama_cpp.sh FOLDER [JOBS]
set -eu
version=0.3.36
folder=${1:?usage: llama_cpp.sh FOLDER [JOBS]} jobs=${2:-2}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if [ ! -d "$folder/llama.cpp" ]; then
    "${PYTHON:-python3}" -m pip download "llama-cpp-python==$version" --no-binary :all: --no-deps -d "$folder"
    tar -xf "$folder/llama_cpp_python-$version.tar.gz" -C "$folder"
    mv "$folder/llama_cpp_python-$version/vendor/llama.cpp" "$folder/llama.cpp"
    rm -rf "$folder/llama.cpp/.git" # it refers to a missing repository, and CMake would wait for it
fi
cmake -S "$folder/llama.cpp" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
cmake --build "$folder" --target llama-quantize -j"$jobs"
