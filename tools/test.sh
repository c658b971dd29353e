#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, and runs every test: with the address and undefined-behaviour
# sanitizers; in release; with clang; threaded tests under the thread sanitizer; the smallest build; the
# Metal backend in an emulator (sanitized); if there is a CUDA toolkit, the CUDA backend as far as it runs
# without a GPU; a build for 64-bit Arm under qemu; the sources with the headers of other FFmpegs, and
# tools/demo.sh in a root of Debian 13 (as root). Finally it prints the findings of clang-format, clang-tidy,
# cppcheck and codespell.
#   STAGE...: only these stages, in the order of `all` below.
#   --gpu: only the tests of the CUDA backend, and compute-sanitizer on checkop and the decoder process, on
#     a machine with an NVIDIA GPU.
#   --asan-python: only the wheel's tests, with the extension and its programs under the address
#     sanitizer.
#   QV_DEPS=no: installs nothing; CMAKE_PREFIX_PATH and PKG_CONFIG_PATH name the libraries' folders.
set -eu
cd "$(dirname "$0")/.."
gpu= asan_python=
all='dev release clang tsan min metal cuda wheel arm64 trixie lint'
case ${1:-} in
--gpu) gpu=1; shift ;;
--asan-python) asan_python=1; shift ;;
esac
for stage; do
    case " $all " in
    *" $stage "*) ;;
    *) echo "test.sh: unknown stage \"$stage\"; stages are $all (or --gpu or --asan-python alone)" >&2; exit 2 ;;
    esac
done
stages=" ${*:-$all} "
wanted() { case $stages in *" $1 "*) ;; *) return 1 ;; esac; }
[ "${QV_DEPS:-}" = no ] || sh tools/deps.sh tests
export OMP_WAIT_POLICY=passive # as the presets for tests set it (CONTRIBUTING.md)
passed=0 failed=0 began=$(date +%s)
say() { printf '\n== %s (after %d s)\n' "$*" "$(($(date +%s) - began))"; }
mkdir -p build

# check COMMAND... runs one step, which passes or fails; its output is shown if it fails
check() {
    if "$@" > build/check.log 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        cat build/check.log
    fi
}
# check_here COMMAND... is `check` for a step that not every machine can run. There it is skipped, with exit
# code 77 and the reason in its last line; CI must be able to run it.
check_here() {
    status=0
    "$@" > build/check.log 2>&1 || status=$?
    tail -n 1 build/check.log
    case $status:${CI:-} in
    0:*) passed=$((passed + 1)) ;;
    77:) ;;
    *) failed=$((failed + 1)); cat build/check.log ;;
    esac
}
# build PRESET [cmake --build options] configures and builds a preset
build() {
    preset=$1; shift
    say "Building $preset"
    cmake --preset "$preset" && cmake --build --preset "$preset" "$@"
}
# run PRESET [ctest options] runs ctest and adds its counts. A tenth of tests' time is waiting, so
# three share two cores.
run() {
    preset=$1; shift
    say "Testing $preset"
    log=build/$preset/ctest.log status=0
    ctest --preset "$preset" -j 3 --timeout 600 "$@" > "$log" 2>&1 || status=$?
    grep -E 'Test +#[0-9]+:|tests passed|FAILED|Failed' "$log" || cat "$log"
    ok=$(grep -cE 'Test +#[0-9]+:.* Passed ' "$log" || true)
    bad=$(grep -cE 'Test +#[0-9]+:.*(\*\*\*|Not Run)' "$log" || true)
    passed=$((passed + ok)) failed=$((failed + bad))
    if [ "$status" -ne 0 ] || [ "$ok" -eq 0 ]; then
        cat "$log"
        [ "$bad" -ne 0 ] || failed=$((failed + 1))
    fi
}

finish() {
    printf '\n%d passed, %d failed, %d s\n' "$passed" "$failed" "$(($(date +%s) - began))"
    [ "$failed" -eq 0 ]
    exit
}

PATH=$PATH:/usr/local/cuda/bin
if [ -n "$gpu" ]; then
    command -v nvidia-smi > /dev/null || { echo 'test.sh --gpu: nvidia-smi is missing, so there is no GPU' >&2; exit 4; }
    export QV_TEST_GPU=1
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    jpeg=ON
    pkg-config --exists libjpeg || jpeg=OFF # a GPU machine may lack it; no test below reads an image
    # only for this machine's GPU
    check cmake --preset cuda -DQV_CUDA_ARCHITECTURES="$capability" -DQV_JPEG=$jpeg
    check build cuda
    model=build/cuda/tower-m # a tower of real size with random weights: 0.8 GB
    [ -e $model/config.json ] ||
        build/cuda/qwenvit synth --config tools/demo/qwen3-vl-2b -o $model > /dev/null
    export QV_TEST_MODEL=$PWD/$model
    run cuda -R 'cuda|^golden$|^api$|^threads$|^verify$' -LE absent
    for tool in memcheck racecheck initcheck synccheck; do
        say "compute-sanitizer, $tool"
        # racecheck does not see how cuDNN orders shared memory, and reports its attention
        except=
        [ $tool != racecheck ] || except='--kernel-name-exclude kernel_substring=cudnn_generated'
        # by compute-sanitizer's count, cuDNN's attention has more barriers per block than it has room for
        [ $tool != synccheck ] || except='--num-cuda-barriers 1024'
        # cuDNN keeps its kernels, which initcheck reports as unused memory; test_cuda looks for leaks
        check compute-sanitizer --tool $tool $except --error-exitcode 1 --print-limit 20 \
            build/cuda/tests/checkop --backend cuda --count 12 --seed 7 \
            --op 'norm rows=4999 cols=512 eps=1e-6 rms=1 dtype=bf16' # several rows per warp
        # a kernel that runs two operations at once, so checkop does not run it
        check compute-sanitizer --tool $tool --kernel-name kernel_substring=hopper_gemm --error-exitcode 1 \
            --print-limit 20 build/cuda/tests/test_cuda a_pair_alone
        # it runs no kernel with shared memory, and racecheck misses launches from several threads
        [ $tool = racecheck ] ||
            check compute-sanitizer --tool $tool --error-exitcode 1 --print-limit 20 build/cuda/tests/test_cuda_frames
    done
    clip=build/cuda/tests/x264.mp4
    (cd build/cuda/tests && ./write_clips x264.mp4)
    if [ -e $clip ] && grep -q NVDEC_FOUND:INTERNAL=1 build/cuda/CMakeCache.txt; then
        say 'compute-sanitizer, memcheck, of the process that decodes'
        # a locked process cannot report to the sanitizer
        check compute-sanitizer --tool memcheck --target-processes all --error-exitcode 1 \
            build/cuda/tests/gpu_clips build/cuda/tests/unlocked_decoder fps=10 only=gpu $clip
        say 'decoders of all sizes under the lock'
        check build/cuda/tests/gpu_locked
        say 'all colours, converted on the GPU'
        check build/cuda/tests/gpu_scale
    fi
    finish
fi

# tests the wheel as users get it: installed elsewhere, without numpy and with numpy
wheel() (
    PATH=$PWD/build/deps/python/bin:$PATH here=$PWD bare=build/python/bare
    python -m mypy --version || return # without mypy a test is skipped
    # pip's temporary folder is below this one, so this is the one path that the wheel must not name
    rm -rf build/python && mkdir -p build/python/tmp &&
        TMPDIR=$PWD/build/python/tmp \
            pip wheel -q --no-deps --no-build-isolation -w build/python/dist . &&
        sh tests/shipped.sh build/python/dist/*.whl "$PWD" "\$ORIGIN/../.." && # it must search only itself
        sh tests/symbols.sh build/python/dist/*.whl &&
        [ "$(cat build/python/dist/*.whl | wc -c)" -lt 60000000 ] &&
        python -m venv $bare &&
        $bare/bin/pip install -q --disable-pip-version-check --no-deps build/python/dist/*.whl &&
        (cd / && env -i "$here/$bare/bin/python" -I "$here/python/tests/bare.py" \
            "$here/tests/golden/qwen3_vl") &&
        pip install -q --disable-pip-version-check --no-deps --target build/python/site \
            build/python/dist/*.whl &&
        PYTHONPATH=build/python/site QV_FAULTY_DECODER=$PWD/build/release/tests/faulty_decoder \
            python -m pytest -q -rs -p no:cacheprovider python/tests
)
# README's first lines, then every page's snippets; the wheel's build folder exists already
snippets() { python3 tests/snippets.py build/python/snippets; }
# Python itself is not built with the sanitizer, so the sanitizer is loaded first, with the library
# whose exceptions it watches. Python never frees all of its memory.
wheel_asan() (
    PATH=$PWD/build/deps/python/bin:$PATH work=build/python-asan
    rm -rf $work && mkdir -p $work &&
        pip wheel -q --no-deps --no-build-isolation -w $work/dist . -C build-dir=build/wheel-asan \
            -C cmake.build-type=Debug -C cmake.define.QV_SANITIZE=address \
            -C 'cmake.define.CMAKE_C_FLAGS_DEBUG=-g -O1' -C 'cmake.define.CMAKE_CXX_FLAGS_DEBUG=-g -O1' &&
        pip install -q --disable-pip-version-check --no-deps --target $work/site $work/dist/*.whl &&
        LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so.6)" \
            PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$work/site \
            python -m pytest -q -p no:cacheprovider python/tests
)
if [ -n "$asan_python" ]; then
    say 'The wheel under the address sanitizer'
    check wheel_asan
    finish
fi

if wanted dev; then
    check build dev
    # left out: minutes of GEMMs and of killed processes, whose code other tests run too
    run dev -E '^(buckets|cache_crash)$'
fi
if wanted release; then
    check build release
    # left out: tests of what sanitizers find, and tests that wait, kill, or spend their time in FFmpeg,
    # for which optimisation makes no difference
    # The stage trixie runs ffmpeg_headers.
    left_out='ffmpeg_headers|faults_(alloc|onednn).*|planted|planted_command|isolation|job|job_progress|mlx_sizes|command|bench_program|many_command|cache_(command|lived)|clips|frames|gpu|lost_device|verify'
    # the CUDA build runs it, with everything that this one has
    ! command -v nvcc > /dev/null || left_out="$left_out|consumer"
    run release -E "^($left_out)\$"
fi
if wanted clang; then
    check build clang
    units='api|config|conv3d.*|dtype|geometry|golden|preprocessing|op|safetensors|weights'
    run clang -R "^($units|checkop_cpu_2|symbols.*)\$"
fi
if wanted tsan; then
    threaded='threads copier prefetch backend_library kernel_files isolation planted job job_progress
        cache_reader'
    check build tsan --target $(printf 'test_%s ' $threaded)
    export QV_SOAK=20 # clips are slow under the sanitizer
    run tsan -R "^($(echo $threaded | tr ' ' '|'))\$"
    unset QV_SOAK
fi
if wanted min; then
    check build min # the core and ref, with jansson alone
fi
if wanted metal; then
    metal='api golden threads conv3d_run metal'
    check build metal-dev --target qwenvit_command qwenvit_bench checkop checkconv metal_selftest metal_translate $(printf 'test_%s ' $metal)
    run metal-dev -R "metal|^($(echo $metal | tr ' ' '|'))\$"
fi
if ! wanted cuda; then
    :
elif command -v nvcc > /dev/null; then
    # the oldest, the measured one, and the newest; all of them would take a minute more
    check cmake --preset cuda -DQV_CUDA_ARCHITECTURES='80;90;120'
    # what is installed, what is run here, and what --gpu runs; the other tests were compiled above
    check build cuda --target installed cuda_plans checkop checkconv \
        $(printf 'test_%s ' cuda cuda_open cuda_contexts api golden threads verify)
    run cuda -L absent -E '^cuda_plans_1$' # tests for a machine without a GPU; --gpu ran on 1
else
    say 'CUDA: no nvcc here, skipped'
fi

# has TOOL VERSION: only Debian 12's versions count, because findings differ between versions; git is
# needed to list our files
has() {
    say "$1"
    git ls-files --error-unmatch tools/test.sh > /dev/null || {
        echo "not a git checkout: skipped"
        return 1
    }
    "$1" --version 2> /dev/null | grep -qF "$2" || {
        echo "$1 $2 is not installed: skipped"
        return 1
    }
}
# tidy PRESET PATTERN... checks files as that preset compiles them
tidy() {
    preset=$1; shift
    git ls-files "$@" | nice xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "build/$preset"
}
# static checks that take minutes
static_checks() (
    status=0
    if has clang-tidy 'version 14.'; then
        tidy dev 'src/*/*.c' 'cpu/*.c' 'job/*.c' 'cache/*.c' 'ipc/*.c' 'pixels/*.c' 'clips/*.c' 'decoder/*.c' 'tools/*/*.c' || status=1
        tidy metal-dev 'metal/*.c' || status=1
    fi
    if has cppcheck 'Cppcheck 2.10'; then
        mkdir -p build/cppcheck
        nice cppcheck --project=build/dev/compile_commands.json --cppcheck-build-dir=build/cppcheck \
            -j "$(nproc)" --quiet --std=c11 --enable=warning,performance,portability \
            --suppressions-list=tests/cppcheck.txt --error-exitcode=1 || status=1
    fi
    exit $status
)
# results of the static checks, and their output
static_checks_end() {
    status=0
    wait "$checked" || status=$?
    cat build/static.log
    return $status
}
# They run next to the wheel's tests, which keep one core busy. They need the files that dev and metal configure and generate.
if wanted lint; then
    wanted dev || check build dev --target qwenvit_bench
    wanted metal || check cmake --preset metal-dev
    static_checks > build/static.log 2>&1 &
    checked=$!
fi

if ! wanted wheel; then
    :
elif [ -e build/deps/python/done ]; then
    wanted release || check build release --target faulty_decoder
    say 'The wheel'
    check wheel
    grep '^SKIPPED' build/check.log || true # tests that were skipped because something is missing
    say "The pages' snippets"
    check snippets
    sed -n '/, [0-9]*: not run: /p; $p' build/check.log
else
    say 'The wheel: tools/deps.sh tests has not been run here, skipped'
fi

if wanted arm64; then
    say '64-bit Arm'
    check_here sh tests/arm64.sh
    grep -A 1 '^cpu: ' build/check.log || true
fi

if wanted trixie; then
    say 'The headers of other FFmpegs'
    check_here sh tests/ffmpeg_headers.sh build/deps/ffmpeg-headers
    say 'The demo in Debian 13'
    check_here sh tests/clean_root.sh demo trixie
    grep '^tools/.*: [0-9]* s$' build/check.log || true
fi

wanted lint || finish

if has clang-format 'version 14.'; then
    check clang-format --dry-run --Werror $(git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' '*.m' '*.metal')
fi
if has codespell '2.2.'; then # grid_thw, "\nin", and mistakes that tests make on purpose
    check codespell -L thw,nin,setts,kernal,hight,enocde \
        $(git ls-files ':!tests/golden' ':!tests/fuzz/corpus' ':!*.png' ':!*.json*')
fi

say 'What clang-tidy and cppcheck find'
check static_checks_end
grep ': skipped$' build/static.log || true

finish
