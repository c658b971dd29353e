#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that `qwenvit bench` and `qwenvit profile` run the program qwenvit-bench beside the command and pass
# on its output, its exit code or its end by a signal. If it is missing or cannot be started, they print an
# error and give exit code 4. Where there is a stand-in for a GPU's decoders, `bench job --decode gpu` is tested too.
# Usage: bench_program.sh QWENVIT QWENVIT_BENCH MODEL WORK [SOFTWARE_GPU WRITE_CLIPS]
set -eu
qwenvit=$1 bench=$2 model=$3 work=$4 gpu=${5:-} write_clips=${6:-}
. "$(dirname "$0")/expect.sh"
rm -rf "$work" && mkdir -p "$work/bin" && cd "$work"

# both start the same program
for s in bench profile; do
    expect 0 "usage: qwenvit $s" "$qwenvit" $s --help
    mv out.txt command.txt
    expect 0 "usage: qwenvit $s" "$bench" $s --help
    cmp out.txt command.txt || fail "$s --help differs"
done
expect 2 'usage: qwenvit bench SUBCOMMAND' "$bench" bench
expect 2 'no subcommand encode' "$bench" encode
expect 0 'qwenvit-bench SUBCOMMAND --help' "$bench" --help
expect 0 '  commit   ' "$bench" --version

# there is none beside the command, and one in another folder is not used
cp "$qwenvit" bin/qwenvit
printf '#!/bin/sh\necho planted\n' > qwenvit-bench && chmod +x qwenvit-bench
PATH=$PWD:$PATH
for s in 'bench gemm' profile 'bench --help'; do
    expect 4 "${s%% *}: it needs the program qwenvit-bench, which is not beside this one: $PWD/bin/qwenvit-bench" \
        bin/qwenvit $s
    [ ! -s out.txt ] || fail "$s printed"
done
expect 0 'vision tower' bin/qwenvit info "$model"
expect 0 'Times this machine' bin/qwenvit --help

# a file that is not a program, or cannot be started
echo 'no program' > bin/qwenvit-bench
expect 4 'which is not beside this one' bin/qwenvit bench gemm
chmod +x bin/qwenvit-bench
expect 4 'bin/qwenvit-bench cannot be started: ' bin/qwenvit profile

# a program whose exit code is passed on
cat > bin/qwenvit-bench <<'END'
#!/bin/sh
echo "<$*>"
[ "$1" = bench ] || kill -TERM $$
exit 7
END
expect 7 '<bench tower --model a b>' bin/qwenvit bench tower --model 'a b'
expect 143 '<profile -->' bin/qwenvit profile --

# has WAY TEXT..: the record of this way has these
has() {
    way=$1; shift
    for field; do
        grep "\"way\":\"$way\"" out.txt | grep -q "$field" || fail "the record of $way has no $field"
    done
}
if [ -n "$gpu" ]; then
    mkdir gpu from
    (cd from && "$write_clips" x264.mp4)
    cp "$bench" gpu/qwenvit-bench && cp "$gpu" gpu/qwenvit-decoder
    job="gpu/qwenvit-bench bench job --model $model --backend ref --max-pixels 50000 --repeats 1 --json -o jobs"
    if [ -s from/x264.mp4 ]; then
        for i in 1 2 3; do echo "{\"path\": \"from/x264.mp4\", \"key\": \"$i\"}"; done > list.jsonl
        expect 0 '"way":"decode"' $job --list list.jsonl --decode gpu
        has discard '"gpu_clips":3'
    fi
    printf 'made.mp4\n' > made.txt
    expect 0 '' "$qwenvit" synth --clip made.mp4
    expect 3 'no GPU decodes it, since its codec' $job --list made.txt --decode gpu
    export QV_GPU_FAULT='no driver'
    expect 4 'GPU 0 decodes nothing: ' $job --list made.txt --decode gpu
fi
echo "$n commands, all as expected"
