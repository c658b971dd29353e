#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests qwenvit cache over a longer time: records that are superseded or no longer wanted are pruned, sources
# that are gone or lie elsewhere count, and the cost of a run is estimated before it.
# Usage: cache_lived.sh QWENVIT GOLDEN WORK
set -eu
# name spaces of our own, where they can be had: to mount a small disk in
[ -n "${QV_OWN_MOUNTS:-}" ] || ! unshare -rm true 2> /dev/null ||
    exec env QV_OWN_MOUNTS=1 unshare -rm sh "$0" "$@"
qwenvit=$1 golden=$2 work=$3
. "$(dirname "$0")/expect.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work"

# image FILE WIDTH SEED
image() {
    { printf 'P6\n%d 64\n255\n' "$2"; yes "$3 $1 pixels" | head -c $(($2 * 64 * 3)); } > "$1"
}
for i in 1 2 3 4 5 6; do image p$i.ppm $((32 + 32 * i)) $i; done
"$qwenvit" synth --clip v.mp4 > /dev/null
printf 'p%d.ppm\n' 1 2 3 4 5 6 > list.txt
echo v.mp4 >> list.txt
small='--min-pixels 16384 --max-pixels 65536' # small images are enough to test the cache
cache="$qwenvit cache fill --model $golden/qwen3_vl --backend ref --quiet $small"
look="$qwenvit cache"

# ---- before starting
expect 0 'c: 7 to do; 0 are there' $cache --list list.txt -o c --dry-run
grep -q '^  disk .* KB of bf16, \[n, [0-9]*\] and [0-9] DeepStack' out.txt || fail 'no size on a disk'
grep -q 'clips      7, 6 of them images' out.txt || fail 'what the list is'
grep -q 'it cannot be told' out.txt || fail 'a time from nothing'
[ ! -e c ] || fail 'a dry run made the folder'
expect 0 'time       2.00 h at 0.000972222 clips a second' $cache --list list.txt -o c --dry-run --rate 0.00097222222
expect 0 '"hours":null' $cache --list list.txt -o c --dry-run --json
said=$(sed 's/.*"tokens":\([0-9]*\).*"bytes":\([0-9]*\).*/\1 \2/' out.txt)
expect 0 '"done":7' $cache --list list.txt -o c --part-bytes 1 --json
done_tokens=$(sed 's/.*"tokens":\([0-9]*\).*/\1/' out.txt)
expect 0 '"bytes"' $look status c --json
# the tokens are exact, and the bytes are except for each clip's grid and timestamps
[ "${said% *}" = "$done_tokens" ] || fail "$said was said before, $done_tokens tokens it is"
bytes=$(sed 's/.*"bytes":\([0-9]*\).*/\1/' out.txt)
[ "$bytes" -gt "${said#* }" ] && [ "$bytes" -lt $((${said#* } + 7 * 1024)) ] || fail "$said was said, $bytes it is"
image p7.ppm 96 7
{ cat list.txt; echo p7.ppm; } > more.txt
expect 0 '1 to do; 7 are there' $cache --list more.txt -o c --dry-run
grep -q 'as fast as the last run here, which sealed 6 clips' out.txt || fail 'the rate so far is not taken'
expect 0 'tokens     ' "$qwenvit" info --list list.txt --model "$golden/qwen3_vl" --backend ref $small
grep -q "tokens     $done_tokens" out.txt || fail 'info says another sum'
grep -q 'KB of bf16' out.txt || fail 'info does not say what is needed on the disk'
printf 'p1.ppm\nnone.ppm\n' > some.txt
expect 1 '1 of 2 cannot be used' "$qwenvit" info --list some.txt
expect 3 'gone.txt: cannot be opened' "$qwenvit" info --list gone.txt

# ---- what is there
expect 0 '  model      "qwen3_vl", qwen3_vl, "' $look status c
expect 0 '"model":{"name":"qwen3_vl","folder":"/' $look status c --json
expect 0 'p1.ppm' $look keys c
[ "$(sort out.txt)" = "$(sort list.txt)" ] || fail 'other keys'
expect 0 '"key":"v.mp4","path":"v.mp4"' $look keys c --json
[ "$(wc -l < out.txt)" = 7 ] || fail 'not a record a line'
expect 3 'the cache'\''s model is "qwen3_vl"' "$qwenvit" cache fill --model "$golden/qwen3_vl_moe" --backend ref --quiet \
    $small --list list.txt -o c
grep -q 'the run'\''s "qwen3_vl_moe"' err.txt || fail 'the name of the run'\''s model'

# a cache of version 0.2.0 does not name its model, and can be continued
mkdir old && cp c/part-* old
awk '/^  "model": {/ { skip = 1 } !skip { print } /^  }/ { skip = 0 }' c/qwenvit-cache.json > old/qwenvit-cache.json
! grep -q '"folder"' old/qwenvit-cache.json || fail 'the model was not taken out'
expect 0 '7 were there' $cache --list list.txt -o old
expect 0 '  model      qwen3_vl' "$qwenvit" cache status old
expect 0 '1 keys with all of theirs' "$qwenvit" cache delete old p1.ppm --quiet
expect 0 '1 done' $cache --list list.txt -o old

# ---- options that ask for what the model does anyway
expect 0 '7 were there' $cache --list list.txt -o c --fps 2
expect 3 'preprocessing.options.fps' $cache --list list.txt -o c --fps 3
sed 's/^v.mp4$/{"path": "v.mp4", "fps": 2}/' list.txt > asks.txt
expect 0 '7 were there' $cache --list asks.txt -o c

# ---- sources that lie elsewhere, are new downloads, or gone
touch -d @1000000000 p1.ppm
expect 0 '6 are there' $cache --list list.txt -o c --dry-run
expect 0 '7 were there' $cache --list list.txt -o c --same size
mkdir moved && cp p1.ppm p2.ppm moved
for i in 1 2; do echo "{\"path\": \"moved/p$i.ppm\", \"key\": \"p$i.ppm\"}"; done > moved.txt
expect 0 '0 ok, 0 failed, 0 missing, 2 changed' $look status c --list moved.txt
expect 0 '2 ok, 0 failed, 0 missing, 0 changed' $look status c --list moved.txt --trust-keys
expect 0 '2 were there' $cache --list moved.txt -o c --trust-keys
mv p3.ppm p4.ppm moved
parts=$(ls c)
for again in 1 2; do
    expect 0 '0 done, 0 tokens, 0 failed; 7 were there, 0 had failed before' $cache --list list.txt -o c --same size
    grep -q 'the files of 2 clips are gone, the first is p3.ppm' err.txt || fail 'that files are gone is not said'
    [ "$(wc -l < err.txt)" = 1 ] || fail 'more than one warning'
done
[ "$(ls c)" = "$parts" ] || fail 'clips that are gone add a part'
expect 0 'gone       2 of the ok' $look status c --list list.txt
mv moved/p3.ppm moved/p4.ppm .

# ---- superseded and damaged
expect 0 '1 done' $cache --list list.txt -o c # p1
expect 0 'prunable   1 superseded records' $look status c
good=$(ls c/part-*-000000.safetensors | head -n 1)
head -c -1 "$good" > c/part-cut-short-1.safetensors
expect 0 'it is superseded: its keys have better records elsewhere, and qwenvit cache prune removes it' $look check c
grep -q '1 damaged parts, 1 of them superseded (qwenvit cache prune)' out.txt || fail '--check does not count it'
head -c 200 "$good" > c/part-cut-short-2.safetensors
expect 1 '2 damaged parts, 1 of them superseded' $look check c
before=$(ls c)
expect 0 '1 records would be removed' $look prune c --dry-run
[ "$(ls c)" = "$before" ] || fail 'a dry run removed something'
expect 0 '1 records removed, 0 keys with all of theirs; 0 parts rewritten, 1 removed, 2 damaged ones removed' $look prune c
expect 0 '7 keys in 7 parts: 0 bad keys, 0 damaged parts' $look check c
expect 0 '"superseded":0' $look status c --json
[ -z "$(ls -A c | grep tmp || true)" ] || fail 'a temporary file stays'

# ---- keys
expect 0 '7 done' $cache --list list.txt -o one # one part
expect 0 '2 keys with all of theirs; 1 parts rewritten' "$qwenvit" cache delete one p1.ppm p2.ppm --quiet
expect 0 '5 ok, 0 failed, 2 missing' "$qwenvit" cache status one --list list.txt
expect 1 'one: there is no key p1.ppm' "$qwenvit" cache delete one p1.ppm
expect 0 ' 0 bad keys' "$qwenvit" cache check one --quiet
printf 'p5.ppm\nv.mp4\nnew.ppm\n' > keep.txt
expect 0 '3 keys with all of theirs' "$qwenvit" cache prune one --quiet --list keep.txt --dry-run
expect 0 '3 keys with all of theirs' "$qwenvit" cache prune one --quiet --list keep.txt
expect 0 '' "$qwenvit" cache keys one
[ "$(sort out.txt | tr '\n' ' ')" = 'p5.ppm v.mp4 ' ] || fail 'other keys than those of the list are left'
for key in p5.ppm v.mp4; do
    "$qwenvit" cache get one $key -o a.safetensors
    "$qwenvit" cache get c $key -o b.safetensors
    cmp a.safetensors b.safetensors || fail "$key is not what it was"
done
expect 0 '5 done' $cache --list list.txt -o one # the cache can be continued
: > empty.txt
expect 3 'has no key; to remove all of a cache' "$qwenvit" cache prune one --list empty.txt
expect 3 'this is no cache' "$qwenvit" cache prune moved

# ---- while a run has it
{ cat list.txt; awk 'BEGIN { for (i = 0; i < 200; i++) printf "{\"path\": \"v.mp4\", \"key\": \"%d\"}\n", i }'; } > long.txt
$cache --list long.txt -o busy --max-pixels 262144 --num-frames 768 --chunk-rows 1024 --part-seconds 0.1 \
    > run.txt 2>&1 & run=$!
until ls busy/part-* > /dev/null 2>&1; do
    kill -0 $run || fail 'the run ended'
    sleep 0.1
done
expect 4 'another process adds to this cache' "$qwenvit" cache prune busy
expect 0 'would be removed' "$qwenvit" cache prune busy --quiet --dry-run
kill -9 $run
wait $run 2> /dev/null || true
expect 0 '0 records removed' "$qwenvit" cache prune busy --quiet

# ---- usage
expect 2 'no option --list' "$qwenvit" cache delete c k --list list.txt
expect 2 'no option --shard' "$qwenvit" cache prune c --list list.txt --shard 0/2
expect 2 'no option --dry-run' "$qwenvit" cache status c --dry-run
expect 2 'no option --no-lock' "$qwenvit" cache status c --no-lock
expect 2 '--rate goes with --dry-run' $cache --list list.txt -o c --rate 3
expect 2 '--same is "time", must be size' $cache --list list.txt -o c --same time
expect 2 'KEY... is required' "$qwenvit" cache delete c

# ---- disks
if [ -n "${QV_OWN_MOUNTS:-}" ] && mkdir disk && mount -t tmpfs -o size=2m none disk; then
    mkdir disk/c
    cp c/qwenvit-cache.json one/part-* disk/c
    free=$(df -k --output=avail disk | tail -n 1)
    head -c $((free * 1024)) /dev/zero > disk/filler
    expect 4 'No space left' "$qwenvit" cache delete disk/c p5.ppm --quiet
    expect 0 '7 ok' "$qwenvit" cache status disk/c
    [ -z "$(ls -A disk/c | grep tmp || true)" ] || fail 'a temporary file stays'
    mount -o remount,ro disk
    expect 4 'Read-only' "$qwenvit" cache delete disk/c p5.ppm --quiet
    expect 0 '1 keys with all of theirs' "$qwenvit" cache delete disk/c p5.ppm --quiet --dry-run
    umount disk
else
    echo 'no disk can be mounted here: a full one was left out'
fi
rm -rf "$work"
echo "$n commands"
