#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests the command with a hostile decoder. In a cache or a list, each clip with a planted
# fault fails alone, with an error message, and the others are encoded. A second run adds a cache's missing clips.
# Usage: planted.sh QWENVIT FAULTY_DECODER MODEL WORK
set -eu
qwenvit=$1 faulty=$2 model=$3 work=$4
. "$(dirname "$0")/expect.sh"
unset QV_FAULT # each clip brings its own fault
rm -rf "$work" && mkdir -p "$work/bin" "$work/out" && cd "$work"
cp "$qwenvit" bin/qwenvit
cp "$faulty" bin/qwenvit-decoder # the command looks for it next to itself
qwenvit=$PWD/bin/qwenvit

# plant FAULT FILE: makes a clip whose decoder has the fault (faulty_decoder.h)
plant() {
    cp v.mp4 "$2"
    printf '\000\000\000\060free%-40s' "planted: $1" >> "$2"
}
n_good=20 n_bad=0 # clips with enough frames for their requests to fill a socket
"$qwenvit" synth --clip v.mp4 > /dev/null
for i in $(seq $n_good); do echo "{\"path\": \"v.mp4\", \"key\": \"good $i\"}" >> list.txt; done
cp list.txt clips.txt
while read -r fault; do
    n_bad=$((n_bad + 1))
    plant "$fault" "bad $n_bad.mp4"
    echo "bad $n_bad.mp4" >> list.txt
done << END
deaf
exit 7
opening exit 8
signal 9
signal 11
end 5
end 6
end 7
rate nan
busy above
frames
garbage
END
plant names 'names.mp4'
echo names.mp4 >> list.txt # a codec name that is not text does no harm
sort list.txt > mixed.txt  # bad clips come first
common="--model $model --backend ref --quiet --decode-seconds 20 --num-frames 400 --min-pixels 1 --max-pixels 16384"
cache="$qwenvit cache fill $common --list mixed.txt -o tokens"

expect 1 "21 done" $cache
grep -qF "$n_bad failed" out.txt err.txt || fail "not $n_bad have failed"
expect 0 "21 ok, $n_bad failed, 0 missing" "$qwenvit" cache status tokens --list mixed.txt
expect 0 ' 0 bad keys, 0 damaged' "$qwenvit" cache check tokens --quiet
expect 1 "0 done, 0 tokens, 0 failed; 21 were there, $n_bad had failed before" $cache
expect 3 'its decoder accepted no requests' "$qwenvit" cache get tokens 'bad 1.mp4' -o k.safetensors

# the bad clips are replaced by good ones; then they are done, and the list has no others
for i in $(seq $n_bad); do cp v.mp4 "bad $i.mp4"; done
expect 0 "$n_bad done" $cache
expect 0 "$((21 + n_bad)) ok, 0 failed, 0 missing" "$qwenvit" cache status tokens --list mixed.txt

plant 'end 7' 'bad 1.mp4'
plant 'rate nan' 'bad 2.mp4'
expect 1 '2 of 5 clips failed' "$qwenvit" encode $common v.mp4 'bad 1.mp4' names.mp4 'bad 2.mp4' 'bad 3.mp4' -o out
[ "$(ls out | wc -l)" = 3 ] || fail "not three files are written"
expect 3 'an impossible reply' "$qwenvit" info "bad 2.mp4" --json
expect 0 '"codec":"???' "$qwenvit" info names.mp4 --json

# The decoder's program is killed once the first file is there, and started again: no clip is lost.
"$qwenvit" encode $common --list clips.txt -o killed > killed.txt 2>&1 &
pid=$!
until [ -n "$(ls killed/*.safetensors 2> /dev/null)" ]; do
    kill -0 $pid || fail "the list was done before its decoder was killed: $(cat killed.txt)"
    sleep 0.01
done
for child in $(cat /proc/$pid/task/*/children); do kill -KILL "$child"; done
wait $pid || fail "a killed decoder ended the list: $(cat killed.txt)"
[ "$(ls killed | wc -l)" = $n_good ] || fail "not $n_good files are written"
for i in $(seq 2 $n_good); do
    cmp "killed/good 1.safetensors" "killed/good $i.safetensors" || fail "clip $i is not the others'"
done
rm -rf "$work"
echo "$n commands"
