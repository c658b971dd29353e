#!/bin/sh
# SPDX-License-Identifier: MIT
# address_spaces.sh CLANG TRANSLATE FOLDER KERNELS.metal...: tests that pointers in all kernels keep to their
# address spaces, and variables that keep their values to the constant one, and that the test finds planted breaches.
set -eu
clang=$1 translate=$2 folder=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"

# Variables at program scope, and static ones, are constant in Metal.
all_constant=-cl-ext=-__opencl_c_program_scope_global_variables,-__opencl_c_device_enqueue
accepts() { # SOURCE LIBRARY
    "$translate" --address-spaces "$1" "$folder/spaces.clcpp" "$2" &&
        "$clang" -x cl -cl-std=clc++2021 -target spir64 -Xclang -finclude-default-header \
            -Xclang "$all_constant" -fsyntax-only -Wall -Wno-unused -Wno-unknown-pragmas -Werror -I "$here" \
            "$folder/spaces.clcpp"
}

for source in "$@"; do
    for library in bfloat float; do
        accepts "$source" $library || { echo "$source: not with $library" >&2; exit 1; }
    done
done

planted() { # STATEMENTS [DECLARATIONS]
    cat > "$folder/planted.metal" <<END
#include <metal_stdlib>
using namespace metal;
typedef REAL real;
${2:-}
static inline void add(thread float &v) { v += 1; }
static inline float first(device const float *p) { return p[0]; }
kernel void
planted(device const real *x [[buffer(0)]], device float *y [[buffer(1)]],
        constant float &c [[buffer(2)]], threadgroup float *t [[threadgroup(0)]])
{
    float v = c;
    $1
}
END
    accepts "$folder/planted.metal" bfloat 2> "$folder/planted.log"
}

right='add(v); t[0] = first(y); device float *p = y; p[1] = float(x[0]);
    simdgroup_matrix<real, 8, 8> m; simdgroup_load(m, x);'
planted "$right" || { cat "$folder/planted.log" >&2; exit 1; }
while read -r wrong; do
    if planted "$wrong"; then
        echo "accepted: $wrong" >&2
        exit 1
    fi
done <<'END'
threadgroup float *p = y; p[0] = v;
device float *p = (device float *)t; p[0] = v;
device const float *p = &c; v = p[0];
add(y[0]);
device float *p = x; p[0] = v;
float *p = y; p[0] = v;
threadgroup float some[4]; some[0] = v;
simdgroup_matrix<float, 8, 8> m; simdgroup_load(m, x);
c = v;
double d = v; t[0] = d;
static uint n = 0; n++; t[0] = n;
float w [[patient]] = v; t[0] = w;
END

for wrong in 'static float sum = 0;' 'struct state { float sum; } now;' 'float sums[4] = { 0 };'; do
    ! planted '' "$wrong" || { echo "accepted: $wrong" >&2; exit 1; }
done
