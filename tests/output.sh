#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that the command's output appears as a whole or not at all, with too little space, a full device, a
# missing folder, and signals. A file that had the name before stays, nothing half written stays, and the exit
# code and a text report the failure.
# Usage: output.sh QWENVIT GOLDEN WORK
set -eu
# separate name spaces, if the system allows it: to mount a small disk in
[ -n "${QV_OWN_MOUNTS:-}" ] || ! unshare -rm true 2> /dev/null ||
    exec env QV_OWN_MOUNTS=1 unshare -rm sh "$0" "$@"
qwenvit=$1 model=$2/qwen3_vl work=$3
. "$(dirname "$0")/expect.sh"
rm -rf "$work" && mkdir -p "$work/disk" && cd "$work"

# whole CODE WORDS COMMAND...: like expect, and checks that no temporary file stays
whole() {
    expect "$@"
    [ -z "$(ls . disk | grep '\.tmp\.' || true)" ] || fail "a temporary file stays: $*"
}
# fails CODE WORDS FILE COMMAND...: also checks that the command neither makes FILE nor changes it
fails() {
    code=$1 words=$2 file=$3; shift 3
    rm -rf "$file"
    whole "$code" "$words" "$@"
    [ ! -e "$file" ] || fail "left $file: $*"
    echo 'what was there' > "$file"
    whole "$code" "$words" "$@"
    [ "$(cat "$file")" = 'what was there' ] || fail "changed $file: $*"
}
# limited COMMAND...: runs it with files of 512 bytes at most (no clip can be decoded then)
limited() { (ulimit -f 1; exec "$@"); }
# fill PAGES: fills disk/, which has two pages, and leaves PAGES of them free
fill() { rm -f disk/*; head -c $((4096 * (2 - $1))) /dev/zero > disk/fill; }

{ printf 'P6\n96 64\n255\n'; head -c 18432 /dev/zero | tr '\0' '\152'; } > grey.ppm
encode="$qwenvit encode grey.ppm --model $model --quiet"

# no space
if [ -n "${QV_OWN_MOUNTS:-}" ] && mount -t tmpfs -o size=8k none disk; then
    for file in o.safetensors p.png; do
        write="-o disk/$file"
        [ $file = o.safetensors ] || write="-o /dev/null --drawing disk/$file"
        fill 0
        whole 3 "disk/$file: cannot" $encode $write
        [ "$(ls disk)" = fill ] || fail "left $(ls disk)"
        fill 1
        echo 'what was there' > disk/$file
        whole 3 "disk/$file: cannot" $encode $write
        [ "$(cat disk/$file)" = 'what was there' ] || fail "changed disk/$file"
    done
    fill 1
    head -c 4000 /dev/zero > disk/records.json # leaves room for the beginning of a line
    whole 3 'records.json: cannot append' $encode -o /dev/null --json=disk/records.json
    [ "$(wc -c < disk/records.json)" = 4000 ] || fail 'half a record stays'
else
    echo 'no disk can be mounted here: encode met /dev/full alone'
fi
fails 3 'clip.mp4: the clip cannot be made' clip.mp4 limited "$qwenvit" synth --clip clip.mp4 --force
fails 3 'model.safetensors: cannot' s/model.safetensors sh -c 'mkdir -p s; ulimit -f 1; exec "$@"' - \
    "$qwenvit" synth --config "$model" -o s --force
[ "$(ls s)" = model.safetensors ] || fail "synth left $(ls s)"
if [ -e /dev/full ]; then
    whole 3 '/dev/full: cannot write: No space' $encode -o /dev/full
    fails 3 '/dev/full: cannot write: No space' o.safetensors $encode -o o.safetensors \
        --drawing /dev/full
    whole 3 '/dev/full: cannot append' $encode -o /dev/null --json=/dev/full
    whole 3 'cannot write to standard output' sh -c '"$1" info "$2" > /dev/full' - "$qwenvit" "$model"
    for asked in --help --version help 'help --bash' 'help encode'; do
        whole 3 'cannot write to standard output' sh -c '"$1" $2 > /dev/full' - "$qwenvit" "$asked"
    done
    [ -c /dev/full ] && [ -c /dev/null ] || fail 'a device was replaced'
fi

# no such place
mkdir -p folder.png many/grey.ppm.safetensors
whole 3 'no/o: cannot create' $encode -o no/o
whole 3 '/proc/o: cannot create' $encode -o /proc/o
whole 3 'folder.png: is a folder' $encode -o /dev/null --drawing folder.png
whole 3 'grey.ppm.safetensors: is a folder' $encode -o many
if [ "$(id -u)" != 0 ]; then
    mkdir -p locked && chmod 555 locked
    whole 3 'locked/o: cannot create' $encode -o locked/o
fi
# a symbolic link stays one
echo 'what was there' > target.safetensors && ln -s target.safetensors link.safetensors
whole 0 tokens $encode -o link.safetensors
[ -L link.safetensors ] && [ "$(wc -c < target.safetensors)" -gt 1000 ] || fail 'a link was replaced'

# a pipe gets the same bytes
mkfifo pipe.png
cat pipe.png > read.png &
whole 0 tokens $encode -o /dev/null --drawing whole.png
whole 0 tokens $encode -o /dev/null --drawing pipe.png
wait $!
cmp whole.png read.png || fail 'a pipe got other bytes'

# interrupted SIGNAL CODE COMMAND...: sends SIGNAL once there is a temporary file o.safetensors.tmp.PID.N
interrupted() {
    signal=$1 code=$2; shift 2
    rm -f o.safetensors
    (
        waited=0
        until [ -e o.safetensors.tmp.* ] || [ $waited = 1000 ]; do
            sleep 0.05
            waited=$((waited + 1))
        done
        kill -s "$signal" "$(echo o.safetensors.tmp.* | cut -d . -f 4)"
    ) &
    whole "$code" 'interrupted: unfinished output was removed' "$@"
    wait $!
    [ ! -e o.safetensors ] || fail "an interrupted command left its output: $*"
}
whole 0 seconds "$qwenvit" synth --clip motion.mp4
mkfifo nobody.png # nobody reads from it, so the command waits there at the latest
interrupted TERM 143 "$qwenvit" encode motion.mp4 --model "$model" -o o.safetensors --num-frames 768 \
    --max-pixels 100000000 --quiet --drawing nobody.png
# (a shell in the background may ignore the signal, and then the command must ignore it too)
case $(sed -n 's/^SigIgn:.*\(.\)$/\1/p' /proc/self/status 2> /dev/null) in
[2367abef]) echo 'SIGINT is ignored here: not tested' ;;
*) interrupted INT 130 $encode -o o.safetensors --drawing nobody.png ;;
esac

# damaged frames are counted at the end, and the file says how many there were
cp motion.mp4 damaged.mp4
head -c 3000 /dev/zero | dd of=damaged.mp4 bs=1 seek=40000 conv=notrunc 2> /dev/null
whole 0 tokens "$qwenvit" encode damaged.mp4 --model "$model" -o damaged.safetensors --json --quiet
count=$(sed -n 's/.*"damaged_frames":\([0-9]*\).*/\1/p' out.txt)
[ "$count" -gt 0 ] || fail 'no frame is damaged'
head -c 2000 damaged.safetensors | grep -aqF "\\\"damaged_frames\\\":$count}" ||
    fail "the file does not say that $count frames were damaged"
echo "$n commands, all as expected"
