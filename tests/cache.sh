#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests qwenvit cache. A list becomes parts whatever its order, however it is split over processes and
# however often it is interrupted. Clips that are there are not done again, and those that failed or
# changed are reported.
# Usage: cache.sh QWENVIT GOLDEN WORK
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
# data FILE: prints what follows the header of a safetensors file
data() {
    header=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
    tail -c +$((header + 9)) "$1"
}
# value NAME FILE: prints the value of a field of JSON in the metadata or the records of a safetensors file
value() {
    grep -ao "\"$1\\\\*\":[^,}]*" "$2" | sed 's/.*://; s/\\//g'
}
# same KEY CACHE CACHE: succeeds if both caches have the same bytes for the key
same() {
    "$qwenvit" cache get "$2" "$1" -o a.safetensors
    "$qwenvit" cache get "$3" "$1" -o b.safetensors
    cmp a.safetensors b.safetensors || fail "$1 differs in $2 and $3"
}

for i in 1 2 3 4 5 6 7 8 9; do image p$i.ppm $((32 + 32 * i)) $i; done
"$qwenvit" synth --clip v.mp4 > /dev/null
printf 'p%d.ppm\n' 1 2 3 4 5 6 7 8 9 > list.txt
{
    echo v.mp4
    echo missing.mp4
    echo '{"path": "v.mp4", "key": "an odd/key é", "fps": 1}'
} >> list.txt
grep -v missing list.txt > good.txt
small='--min-pixels 1024 --max-pixels 16384' # small images, of which several lie in a chunk
cache="$qwenvit cache fill --model $golden/qwen3_vl --backend ref --quiet $small"

# ---- made, and made again
expect 1 '"done":11' ${cache%--quiet*} $small --list list.txt -o first --json
head -n 1 out.txt | grep -q '^{"progress":{"total":12,"done":0,' &&
    grep -q '^{"key":"missing.mp4","status":"failed","code":"QV_EIO","error":"missing.mp4: cannot be' out.txt ||
    fail 'no record of progress, or of a clip that failed'
is_rate sampled_frames_per_s frames job_s
is_rate tokens_per_s tokens job_s
expect 0 '11 ok, 1 failed' "$qwenvit" info first
expect 1 '0 done, 0 tokens, 0 failed; 11 were there, 1 had failed before' $cache --list list.txt -o first
expect 0 '0 done, 0 tokens, 0 failed; 11 were there' $cache --list good.txt -o first
[ "$(ls first | wc -l)" = 2 ] || fail 'nothing to do, and something was added'
expect 0 '11 ok, 1 failed' "$qwenvit" cache status first
expect 0 '"missing":0' "$qwenvit" cache status first --list list.txt --json
expect 0 '12 keys in 1 parts: 0 bad keys' "$qwenvit" cache check first --quiet
expect 0 '' "$qwenvit" cache get first 'an odd/key é' -o k.safetensors
expect 3 'there is no key' "$qwenvit" cache get first nobody -o k2.safetensors
expect 3 'missing.mp4: cannot be opened' "$qwenvit" cache get first missing.mp4 -o k2.safetensors
[ ! -e k2.safetensors ] || fail 'a key that is none was written'

# ---- the tokens are those of encode
mkdir encoded
expect 0 '' "$qwenvit" encode --list good.txt --model "$golden/qwen3_vl" --backend ref --quiet \
    -o encoded --output-dtype bf16 $small
for key in p3.ppm v.mp4 'an odd/key é'; do
    "$qwenvit" cache get first "$key" -o k.safetensors
    data k.safetensors > k.data
    data "encoded/$key.safetensors" | cmp - k.data || fail "$key is not what encode makes"
    # the record of each clip has its kind and the rate at which it was sampled
    kind=$(value kind "encoded/$key.safetensors") image=false
    [ "$kind" = '"video"' ] || image=true
    [ "$(value picture k.safetensors)" = $image ] || fail "$key is an image or not"
    [ "$(value sampled_fps k.safetensors)" = "$(value sampled_fps "encoded/$key.safetensors")" ] ||
        fail "$key: another sampled_fps than encode says"
done
[ "$(value sampled_fps k.safetensors)" = 1.0 ] || fail 'no sampled_fps of a clip'

# ---- any order, any sharding, any interruption
sort -r list.txt > reversed.txt
expect 1 '11 done' $cache --list reversed.txt -o reversed
for i in 0 1 2; do
    $cache --list reversed.txt -o sharded --shard $i/3 --part-bytes 20000 > out.txt 2>&1 || [ $? = 1 ] ||
        fail "shard $i"
done
expect 0 '11 ok, 1 failed, 0 missing' "$qwenvit" cache status sharded --list list.txt
for wait in 0.2 0.4 0.6 0.8; do
    timeout -s KILL $wait $cache --list list.txt -o killed --part-bytes 5000 > out.txt 2>&1 || true
done
for wait in 0.3 0.7; do
    timeout -s TERM $wait $cache --list list.txt -o killed --part-bytes 5000 > out.txt 2>&1 || true
done
expect 1 'were there' $cache --list list.txt -o killed --part-bytes 5000
expect 0 '11 ok, 1 failed, 0 missing, 0 changed' "$qwenvit" cache status killed --list list.txt
for key in p1.ppm p9.ppm v.mp4 'an odd/key é'; do
    for other in reversed sharded killed; do same "$key" first $other; done
done
[ -z "$(ls -A reversed sharded killed | grep tmp || true)" ] || fail 'a temporary file stays'
expect 0 ' 0 bad keys, 0 damaged' "$qwenvit" cache check killed --quiet

# ---- a signal while more clips wait than the queue holds: heard at once, whatever the length of the list
# (two images, and so many clips that they would take minutes, in chunks of a moment)
slow="--max-pixels 262144 --num-frames 768 --chunk-rows 1024"
{
    printf 'p1.ppm\np2.ppm\n'
    awk 'BEGIN { for (i = 0; i < 1200; i++) printf "{\"path\": \"v.mp4\", \"key\": \"%d\"}\n", i }'
} > long.txt
# ended SIGNAL CODE FILES COMMAND...: sends the signal one second after such files exist, which two images
# make. The command then has half a minute to end.
ended() {
    signal=$1 code=$2 files=$3 got=0 waited=0; shift 3
    n=$((n + 1))
    "$@" > out.txt 2> err.txt & run=$!
    until ls $files > /dev/null 2>&1; do
        kill -0 $run || fail "ended before the signal: $*"
        sleep 0.1
    done
    sleep 1
    kill -s "$signal" $run || fail "ended before the signal: $*"
    while kill -0 $run 2> /dev/null && [ $waited -lt 300 ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
    [ $waited -lt 300 ] || kill -9 $run
    wait $run || got=$?
    [ $got = "$code" ] || fail "SIG$signal: exit $got (137: it was not heard): $*"
}
for signal in TERM HUP; do
    code=143
    [ $signal = TERM ] || code=129
    ended $signal $code "long_$signal/part-*" $cache --list long.txt -o long_$signal $slow --part-seconds 0.1
    grep -q 'interrupted: what was done is sealed' err.txt || fail "SIG$signal: it is not said what was done"
    "$qwenvit" cache status long_$signal --list long.txt --json > out.txt 2> err.txt || fail 'no status'
    grep -q '"ok":[1-9]' out.txt || fail 'nothing of what was done is sealed'
    [ -z "$(ls -A long_$signal | grep tmp || true)" ] || fail 'a temporary file stays'
    expect 0 ' 0 bad keys, 0 damaged' "$qwenvit" cache check long_$signal --quiet
done
ended TERM 143 'encoded_long/p?.ppm.safetensors' "$qwenvit" encode --list long.txt --model "$golden/qwen3_vl" \
    --backend ref --json -o encoded_long $slow
done=$(find encoded_long -type f | wc -l)
[ -z "$(ls -A encoded_long | grep '\.tmp\.' || true)" ] || fail 'encode: a temporary file stays'
grep -q "interrupted: $done of 1202 clips are done, 0 failed, $((1202 - done)) were not done" err.txt &&
    grep -q "^{\"job\":{\"clips\":$done,.*\"not_done\":$((1202 - done)),\"interrupted\":true," out.txt ||
    fail 'encode: it is not said what was done'

# ---- two runs of one shard at once
$cache --list good.txt -o twice > one.txt 2>&1 & first=$!
$cache --list good.txt -o twice > two.txt 2>&1 || fail 'the second of two'
wait $first || fail 'the first of two'
expect 0 '11 ok, 0 failed, 0 missing' "$qwenvit" cache status twice --list good.txt
same v.mp4 first twice

# ---- a clip that changed, and one that is good by now
image p2.ppm 96 other
cp p1.ppm missing.mp4
expect 0 '10 ok, 0 failed, 0 missing, 2 changed' "$qwenvit" cache status first --list list.txt
expect 0 '2 done' $cache --list list.txt -o first
expect 0 '12 ok, 0 failed, 0 missing, 0 changed' "$qwenvit" cache status first --list list.txt
# a clip that changed and fails now: its tokens would be those of a file that is gone
cp p3.ppm kept.ppm && echo nonsense > p3.ppm
expect 1 '0 done, 0 tokens, 1 failed' $cache --list list.txt -o first
expect 1 '0 done, 0 tokens, 0 failed; 11 were there, 1 had failed before' $cache --list list.txt -o first
expect 0 '11 ok, 1 failed, 0 missing, 0 changed' "$qwenvit" cache status first --list list.txt
expect 3 'p3.ppm' "$qwenvit" cache get first p3.ppm -o k.safetensors
mv kept.ppm p3.ppm
expect 0 '1 done' $cache --list list.txt -o first
# ---- a clip that is replaced, or written to, while it is read
# meanwhile COMMAND...: runs it once a run that makes the cache `new` from x.mp4 alone has opened that
meanwhile() {
    rm -rf new
    $cache --list x.txt -o new $slow > out.txt 2> err.txt & run=$!
    until ls -l /proc/$run/fd 2> /dev/null | grep -q '/x\.mp4$'; do
        kill -0 $run || fail "the run ended before it opened the clip: $*"
        sleep 0.01
    done
    "$@"
    kill -0 $run || fail "the run ended before: $*"
    got=0
    wait $run || got=$?
}
if [ -e /proc/self/fd ]; then
    slow="--max-pixels 262144 --num-frames 200"
    echo x.mp4 > x.txt
    cp v.mp4 x.mp4 && touch -d @1000000000 x.mp4
    { cat v.mp4; printf x; } > y.mp4
    meanwhile mv y.mp4 x.mp4
    [ $got = 0 ] || fail "exit $got where a clip was replaced"
    expect 0 '1 changed' "$qwenvit" cache status new --list x.txt # its tokens are the old file's
    expect 0 '1 done' $cache --list x.txt -o new $slow
    expect 0 '1 ok, 0 failed, 0 missing, 0 changed' "$qwenvit" cache status new --list x.txt
    meanwhile touch -d @1000000001 x.mp4
    [ $got = 1 ] || fail "exit $got where a clip was written to"
    grep -q 'x.mp4: the file changed while it was read' err.txt || fail 'a change is not said'
    expect 0 '1 changed' "$qwenvit" cache status new --list x.txt
    expect 0 '1 done' $cache --list x.txt -o new $slow
else
    echo 'no /proc here: clips that change while they are read were left out'
fi

# other seconds of one clip
cut() { printf '{"path":"v.mp4","key":"cut","start":%s,"end":%s,"fps":5}\n' "$1" "$2" > cut.txt; }
cut 1 2
expect 0 '1 done' $cache --list cut.txt -o cuts
grep -aqF '"start":1.0,"end":2.0,' cuts/part-*.safetensors || fail 'the record of a cut'
cut 1.0 2e0
expect 0 '0 done, 0 tokens, 0 failed; 1 were there' $cache --list cut.txt -o cuts
for wrong in '1.000000001 2' '1 2.5' '0 2'; do
    cut ${wrong% *} ${wrong#* }
    expect 0 '0 missing, 1 changed' "$qwenvit" cache status cuts --list cut.txt
done
expect 0 '1 done' $cache --list cut.txt -o cuts
expect 0 '1 ok, 0 failed, 0 missing, 0 changed' "$qwenvit" cache status cuts --list cut.txt
cut 4 5
expect 1 'start 4, end 5: no frame lies in there' $cache --list cut.txt -o cuts
touch -d @1 gone.mp4 && rm gone.mp4
echo gone.mp4 > gone.txt
expect 1 '1 failed' $cache --list gone.txt -o first
expect 1 '0 failed; 0 were there, 1 had failed before (--retry-failed)' $cache --list gone.txt -o first
expect 1 '1 failed; 0 were there' $cache --list gone.txt -o first --retry-failed

# ---- other layouts
expect 0 '11 done' $cache --list good.txt -o packed --packed --tokens f32
expect 0 ' 0 bad' "$qwenvit" cache check packed --quiet
expect 0 '11 done' $cache --list good.txt -o plain --no-deepstack --tokens f16
expect 0 '' "$qwenvit" cache get plain v.mp4 -o k.safetensors
! grep -q deepstack.0 k.safetensors || fail '--no-deepstack has DeepStack'

# ---- what is not the same cache
expect 3 'tokens.dtype' $cache --list good.txt -o first --tokens f32
expect 3 'tokens.packed' $cache --list good.txt -o first --packed
expect 3 'preprocessing.options.fps' $cache --list good.txt -o first --fps 1
expect 3 'model_type' "$qwenvit" cache fill --model "$golden/qwen3_vl_moe" --backend ref --quiet \
    --list good.txt -o first
mkdir foreign && echo '{"format": "another"}' > foreign/qwenvit-cache.json
expect 3 'no cache of qwenvit' $cache --list good.txt -o foreign
expect 3 'no qwenvit-cache.json' "$qwenvit" cache status encoded

# ---- lists
printf 'p1.ppm\np2.ppm\np1.ppm\n' > bad.txt
expect 3 'bad.txt:3:' $cache --list bad.txt -o never
echo '{"path": "p1.ppm", "key": "__x"}' > bad.txt
expect 3 'bad.txt:1:' $cache --list bad.txt -o never
printf '{"path": "p1.ppm", "key": "%05000d"}\n' 7 > bad.txt
expect 3 'bad.txt:1: the key' $cache --list bad.txt -o never
printf 'p1.ppm\0x\n' > bad.txt
expect 3 'bad.txt:1:' $cache --list bad.txt -o never
[ ! -e never ] || fail 'a folder for a list that is none'
key=$(printf '%04096d' 7)
echo "{\"path\": \"p1.ppm\", \"key\": \"$key\"}" > long.txt
expect 0 '1 done' $cache --list long.txt -o reversed
expect 0 '' "$qwenvit" cache get reversed "$key" -o k.safetensors

# ---- usage
expect 2 '-o DIR is required' $cache --list good.txt
expect 2 '--model DIR is required' "$qwenvit" cache fill -o x --list good.txt
expect 2 'no clip given' $cache -o x
expect 2 'DIR is required' "$qwenvit" cache status
expect 2 '-o OUT is required' "$qwenvit" cache get x k
expect 2 'KEY is required' "$qwenvit" cache get x -o k
expect 2 'y is one argument too many' "$qwenvit" cache check x y
expect 4 "pip install 'qwenvit[export]'" "$qwenvit" cache export x --index i
for verb in fill status keys get check prune delete export; do
    expect 0 "usage: qwenvit cache $verb" "$qwenvit" cache $verb --help
    expect 0 "  $verb " "$qwenvit" cache --help
done
# the options of old, which were modes
for old in 'check DIR --out x --check' 'keys DIR --keys --json --out x' 'get DIR KEY -o OUT --out x --get k -o y' \
    'status DIR --out x --status' 'prune DIR --prune --out x' 'delete DIR KEY... --out x --delete k' \
    'fill [CLIP...] --model DIR -o DIR --model m --list l --out x'; do
    new=${old%% --out x*} options=${old#"$new"}
    case $old in keys* | prune* | fill*) new=$(echo "$old" | sed 's/ --\(keys\|prune\|model m\) .*//') options=${old#"$new"} ;; esac
    expect 2 "options: qwenvit cache $new (" "$qwenvit" cache $options
done
expect 2 '--out is -o now' "$qwenvit" cache fill --out x
expect 2 '--picture is --drawing now' "$qwenvit" encode v.mp4 --picture x.png
expect 2 '--shard goes with --list' "$qwenvit" cache status x --shard 0/2
expect 2 '--out is the argument DIR now' "$qwenvit" cache status --out x
for shard in 3/3 -1/3 1 1/0 a/b 1/2x; do expect 2 'I/N' $cache --list good.txt -o x --shard $shard; done
expect 2 'bf16, f16 or f32' $cache --list good.txt -o x --tokens u8

# ---- damage: in a part with one key, so that what is altered is that key's, whatever the order of work
echo p9.ppm > lone.txt
expect 0 '1 done' $cache --list lone.txt -o lone
part=$(ls lone/part-*)
cp "$part" saved
number() { # number AT: a number of 8 bytes in the part
    od -An -tu8 -j"$1" -N8 saved | tr -d ' '
}
index=$((8 + $(number 0)))
data=$(($(number $((index + 48))) + ($(number $((index + 56))) + 63) / 64 * 64)) # tokens begin here
head -c $((data + 100)) saved > "$part"
expect 1 'damaged' "$qwenvit" cache status lone
expect 1 '1 damaged parts' "$qwenvit" cache check lone --quiet
expect 0 '1 done' $cache --list lone.txt -o lone
cp saved "$part"
expect 0 '1 keys in 2 parts: 0 bad keys' "$qwenvit" cache check lone --quiet
rm lone/part-* && cp saved "$part"
printf 'XXXX' | dd of="$part" bs=1 seek=$((data + 16)) conv=notrunc 2> /dev/null
expect 1 'the checksum of its tensors' "$qwenvit" cache check lone --quiet

# ---- a cache of many keys: as docs/cache.md measures one, of fewer
expect 2 '--model DIR is required' "$qwenvit" bench cache --keys 10
many="$qwenvit bench cache --model $golden/qwen3_vl --backend ref --repeats 1 -o many"
expect 0 'look_s' $many --keys 3000
expect 0 '3000 ok, 0 failed, 0 missing' "$qwenvit" cache status many/tokens --list many/clips.txt
expect 0 '"there":3000' "$qwenvit" cache fill --model "$golden/qwen3_vl" --backend ref --quiet \
    --list many/clips.txt -o many/tokens --json
grep -q '"peak_bytes":[1-9]' out.txt || fail 'how much memory it took is not said'
parts=$(ls many/tokens)
expect 0 '"case":"3000 keys","way":"find"' $many --keys 3000 --json
[ "$(ls many/tokens)" = "$parts" ] || fail 'what was there was made again'
expect 2 'has 3000 keys; --keys is 10' $many --keys 10

# ---- folders and disks that cannot be written
expect 3 'the folder cannot be made' $cache --list good.txt -o no/such/folder
expect 3 'the folder cannot be made' $cache --list good.txt -o /proc/qwenvit
echo text > file
expect 3 'the folder cannot be opened' $cache --list good.txt -o file
if [ -n "${QV_OWN_MOUNTS:-}" ] && mkdir disk && mount -t tmpfs -o size=40k none disk; then
    expect 4 'No space left' $cache --list good.txt -o disk/c --tokens f32 --part-bytes 30000
    [ -z "$(ls -A disk/c | grep tmp || true)" ] || fail 'a temporary file stays'
    mount -o remount,size=40m disk
    expect 0 'were there' $cache --list good.txt -o disk/c --tokens f32 --part-bytes 30000
    expect 0 '11 ok, 0 failed, 0 missing' "$qwenvit" cache status disk/c --list good.txt
    mount -o remount,ro disk
    expect 3 'Read-only' $cache --list good.txt -o disk/d --tokens f32
    expect 4 'Read-only' $cache --list list.txt -o disk/c --tokens f32
    umount disk
else
    echo 'no disk can be mounted here: a full one was left out'
fi
rm -rf "$work"
echo "$n commands"
