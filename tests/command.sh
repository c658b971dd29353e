#!/bin/sh
# SPDX-License-Identifier: MIT
# The command as its user runs it: encode, info, synth, bench, verify, exit codes, error texts.
# Usage: command.sh QWENVIT GOLDEN WORK
set -eu
qwenvit=$1 golden=$2 work=$3
model=$golden/qwen3_vl
rm -rf "$work" && mkdir -p "$work" && cd "$work"
n=0

fail() { echo "FAILED: $*"; exit 1; }
# expect CODE WORDS COMMAND...: runs it, checks the exit code and that its output says WORDS
expect() {
    code=$1 words=$2; shift 2
    n=$((n + 1)) got=0
    "$@" > out.txt 2> err.txt < /dev/null || got=$?
    [ "$got" = "$code" ] || { cat out.txt err.txt; fail "exit $got, not $code: $*"; }
    cat out.txt err.txt | grep -qF -- "$words" || { cat out.txt err.txt; fail "no \"$words\": $*"; }
}

# a picture and a clip, made by the command's own libraries (a PPM is a picture FFmpeg reads)
{ printf 'P6\n96 64\n255\n'; head -c 18432 /dev/zero | tr '\0' '\152'; } > grey.ppm
expect 0 'picture' "$qwenvit" info grey.ppm

# usage
expect 0 'SUBCOMMAND' "$qwenvit" --help
for s in encode info synth bench profile verify; do expect 0 'example:' "$qwenvit" $s --help; done
expect 2 'no subcommand' "$qwenvit" decode
expect 2 'no clip given' "$qwenvit" encode
expect 2 '--model DIR is required' "$qwenvit" encode grey.ppm
expect 2 'no option --modell' "$qwenvit" encode --modell x grey.ppm
expect 2 'needs a value' "$qwenvit" encode grey.ppm --model
expect 2 '--num-frames is "0"' "$qwenvit" encode grey.ppm --num-frames 0
expect 2 'must be f32' "$qwenvit" info "$model" --dtype f64

# the work
expect 0 'tokens' "$qwenvit" encode grey.ppm --model "$model" -o a.safetensors --picture p.png
[ -s a.safetensors ] && [ -s p.png ] || fail 'encode wrote nothing'
expect 0 '"tokens":' "$qwenvit" encode grey.ppm --model "$model" -o b.safetensors --json
for stage in wait_decode_s wait_device_s wait_write_s write_s frames_per_s; do
    grep -q "\"$stage\":[0-9]" out.txt || fail "encode --json does not say $stage"
done
cmp a.safetensors b.safetensors || fail 'encoding twice gave other bytes'
expect 0 'bf16' "$qwenvit" encode grey.ppm --model "$model" -o c.safetensors --dtype bf16
expect 0 'f32' "$qwenvit" encode grey.ppm --model "$model" -o d.safetensors --backend ref --dtype f32
mkdir many && cp grey.ppm other.ppm
expect 0 'other.ppm' "$qwenvit" encode grey.ppm other.ppm --model "$model" -o many
[ -s many/grey.ppm.safetensors ] && [ -s many/other.ppm.safetensors ] || fail 'not both written'
expect 0 'deepstack' "$qwenvit" info "$model"
expect 0 'conv3d     still' "$qwenvit" info grey.ppm --model "$model"
expect 0 '"lowering":"still"' "$qwenvit" info grey.ppm --model "$model" --json
grep -q '"chunks_ahead":[12],.*"device_bytes":[0-9]' out.txt || fail 'info lacks chunks or memory'
expect 0 'on the device' "$qwenvit" info grey.ppm --model "$model" --tf32 --device 0

# a checkpoint of its own making
expect 0 'tensors' "$qwenvit" synth --config "$model" -o synthetic --seed 3
expect 0 'tokens' "$qwenvit" encode grey.ppm --model synthetic -o e.safetensors
expect 0 'tensors' "$qwenvit" synth --config "$model" -o sharded --seed 3 --shards 3
expect 0 'tokens' "$qwenvit" encode grey.ppm --model sharded -o f.safetensors
cmp e.safetensors f.safetensors || fail 'shards gave other tokens'

# memory does not grow with the clip: 768 frames within 64 MiB of 16 frames of the same size
expect 0 'motion.mp4: 4 seconds' "$qwenvit" synth --clip motion.mp4
expect 0 '100 frames at 25 fps' "$qwenvit" info motion.mp4
expect 1 '100 frames at 25 fps' "$qwenvit" info missing.mp4 motion.mp4 # the others all the same
for frames in 16 768; do
    expect 0 "\"frames\":$frames," "$qwenvit" encode motion.mp4 --model "$model" -o long.safetensors \
        --num-frames $frames --max-pixels 100000000 --json
    eval "rss_$frames=$(sed 's/.*"peak_rss_bytes":\([0-9]*\).*/\1/' out.txt)"
    cp long.safetensors long_$frames.safetensors
done
grew=$((rss_768 - rss_16))
# (a sanitizer keeps freed memory, so there the figure means nothing)
[ -n "${QV_SANITIZED:-}" ] || [ "$grew" -lt 67108864 ] || fail "768 frames took $grew bytes more than 16"
# the command overlaps decoding with encoding, and still gives the same bytes every time
expect 0 'tokens' "$qwenvit" encode motion.mp4 --model "$model" -o long.safetensors --num-frames 16 \
    --max-pixels 100000000
cmp long.safetensors long_16.safetensors || fail 'encoding a clip twice gave other bytes'
# chunks on their way at once, and a picture of each chunk's own frames
expect 0 'tokens' "$qwenvit" encode motion.mp4 --model "$model" -o a.safetensors --num-frames 15 \
    --chunk 1 --picture a.png
expect 0 'tokens' "$qwenvit" encode motion.mp4 --model "$model" -o b.safetensors --num-frames 15 \
    --chunk 1 --picture b.png
cmp a.safetensors b.safetensors && cmp a.png b.png || fail 'small chunks gave other bytes'

# measuring: tables for people, a record a line for machines, appended to a file
quick='--repeats 1 --threads 1'
for run in 1 2; do
    expect 0 'over limit' "$qwenvit" bench tower --model synthetic --grid 1,4,4 $quick --json=r.json
done
[ "$(wc -l < r.json)" = 10 ] || fail 'two runs of five ways are not ten records'
expect 0 '3 chunks of 2 frame pairs' "$qwenvit" bench tower --model synthetic --grid 5,4,4 --chunk 2 \
    --no-limit $quick --json=r.json
expect 0 'chunks of' "$qwenvit" bench tower --model synthetic --grid 5,4,4 --chunk 0 $quick
printf '# small\n\ncausal: d=3 h=4 w=6 c=8 o=8 kernel=3,3,3 pad_front=2,1,1 pad_back=0,1,1 %s\n' \
    'causal=zeros layout=channels_last # as in a VAE' > shapes.txt
expect 0 'chosen' "$qwenvit" bench conv3d --shapes shapes.txt $quick --json=r.json
XDG_CACHE_HOME=$PWD/cache # the user's own stays out of this
export XDG_CACHE_HOME
expect 0 'chosen' "$qwenvit" bench conv3d --shapes shapes.txt $quick --dtype f32 --tune
grep -q '"choice": "' cache/qwenvit/tune.json || fail '--tune keeps no choice in the cache folder'
echo '{' > damaged.json
expect 0 'ignored and left as it is: damaged.json' "$qwenvit" bench conv3d --shapes shapes.txt \
    $quick --dtype f32 --tune --tune-file damaged.json
[ "$(cat damaged.json)" = '{' ] || fail 'a damaged tune file was written to'
expect 0 'measured choices are not kept' "$qwenvit" bench conv3d --shapes shapes.txt \
    $quick --dtype f32 --tune --tune-file nowhere/tune.json
expect 0 '"way":"by depth"' "$qwenvit" bench conv3d --shapes shapes.txt --lowering 'by depth' \
    $quick --dtype f32 --json
expect 0 'not patchify' "$qwenvit" bench conv3d --shapes shapes.txt --lowering patchify $quick \
    --dtype f32
expect 0 'times patchify' "$qwenvit" bench patch-embed --model "$model" --rows 8 --dtype f32 $quick \
    --json=r.json
grep -q 'GEMM alone' out.txt && grep -q 'times its floor' out.txt || fail 'no GEMM alone, no floor'
expect 0 'of m=1' "$qwenvit" bench gemm --model "$model" --rows 2 --dtype f32 $quick --json=r.json
expect 0 'resize' "$qwenvit" bench preprocess --size 90,160 $quick --json=r.json
expect 0 'frames/s' "$qwenvit" bench preprocess motion.mp4 $quick --json=r.json
expect 0 'deepstack_merger_list (2)' "$qwenvit" profile --model "$model" --grid 1,4,4 $quick \
    --json=r.json --trace trace.json
expect 0 'by layer' "$qwenvit" profile --model "$model" motion.mp4 --num-frames 4 $quick
expect 0 'a chunk of 1 frame' "$qwenvit" profile --model "$model" grey.ppm $quick
grep -q '"traceEvents":.*"ph":"X".*"displayTimeUnit":"ms"' trace.json || fail 'no events traced'
if command -v python3 > /dev/null; then
    python3 - << 'END' || fail 'records or trace are not as documented'
import json
fields = {"bench", "case", "way", "dtype", "median_ms", "p90_ms", "repeats", "flops", "bytes",
          "tflops_per_s", "gb_per_s", "roof_share", "machine", "version", "commit"}
records = [json.loads(line) for line in open("r.json")]
for r in records:
    assert fields <= set(r) and r["median_ms"] > 0 and r["repeats"] > 0, r
    assert ("desc" in r and "chosen" in r) == (r["bench"] in ("conv3d", "patch-embed")), r
assert {r["bench"] for r in records} == {"tower", "conv3d", "patch-embed", "gemm", "preprocess",
                                         "profile"}
tower = {way: [r for r in records if r["bench"] == "tower" and r["way"] == way]
         for way in ("encode", "whole call", "limit", "floor", "streamed")}
assert [len(rs) for rs in tower.values()] == [3, 3, 2, 2, 3]
assert all(r["over_limit"] > 0 and r["over_floor"] > 0 and r["parts"] for r in tower["encode"][:2])
clip = tower["streamed"][-1]
assert clip["case"] == "synthetic 80 patches" and clip["chunks"] == 3 and clip["us_per_patch"] > 0
assert tower["encode"][-1]["case"] == "synthetic 32 patches" and "limit_ms" not in clip
embed = {r["way"]: r for r in records if r["bench"] == "patch-embed"}
assert embed["GEMM alone"]["median_ms"] > 0 and embed["patchify"]["over_gemm"] > 0
assert embed["patchify from bytes"]["over_floor"] > 0
assert sum(r["chosen"] for r in records if r["bench"] == "conv3d") == 2  # one for each dtype
events = json.load(open("trace.json"))["traceEvents"]
spans = [e for e in events if e["ph"] == "X"]
assert len(spans) > 30 and all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans)
assert {e["name"] for e in spans} > {"patch_embed", "blocks.0", "merger", "gemm", "attention"}
END
fi
expect 2 'say what to time' "$qwenvit" bench
expect 2 '--model DIR is required' "$qwenvit" bench tower
expect 2 '--model DIR is required' "$qwenvit" profile
expect 2 'one clip at most' "$qwenvit" profile --model "$model" a.mp4 b.mp4
expect 2 '--lowering is "sideways"' "$qwenvit" bench conv3d --lowering sideways
printf 'good: d=2 h=2 w=2 c=2 o=2 kernel=1,1,1\nbad: d=2 h=2 w=2 kernal=1,1,1\n' > shapes.txt
expect 3 'shapes.txt:2: conv3d: there is no field "kernal"' "$qwenvit" bench conv3d \
    --shapes shapes.txt $quick --dtype f32
echo 'd=2 h=2' > shapes.txt
expect 3 'shapes.txt:1: "d=2 h=2" is not of the form' "$qwenvit" bench conv3d --shapes shapes.txt
echo 'too wide: d=2 h=2 w=2 c=2 o=2 kernel=5,5,5' > shapes.txt
expect 3 'shapes.txt:1: ' "$qwenvit" bench conv3d --shapes shapes.txt $quick
expect 3 'missing.txt' "$qwenvit" bench conv3d --shapes missing.txt
expect 3 'no/such/folder' "$qwenvit" profile --model "$model" --grid 1,4,4 $quick \
    --trace no/such/folder/trace.json

# is it the same model?
golden_file=$model/expected.safetensors
small='--grid 1,8,12 --threads 2'
mkdir tmp && TMPDIR=$PWD/tmp && export TMPDIR
expect 0 '0 failed' "$qwenvit" verify --model "$model" $small
grep -q 'blocks.2 *bf16' out.txt && grep -q 'channels-last *f32' out.txt || fail 'rows are missing'
expect 0 '0 failed' "$qwenvit" verify --model "$model" --clip motion.mp4 --dtype f32
expect 0 '1 of 1 sampled frames' "$qwenvit" verify --model "$model" --clip grey.ppm --dtype f32
expect 0 '"ok":true' "$qwenvit" verify --model "$golden/qwen3_vl_moe" $small --quiet --json=v.json --json
[ ! -s err.txt ] || fail '--quiet was not'
expect 0 '"check":"against"' "$qwenvit" verify --model "$model" --against "$golden_file" --json
cat out.txt >> v.json
expect 0 '0 failed' "$qwenvit" verify --model "$model" $small --against-backend ref --dtype f32
expect 1 'verify: against: patch_embed in f32: worst distance' "$qwenvit" verify --model synthetic \
    --against "$golden_file" --json
cat out.txt >> v.json
if command -v python3 > /dev/null; then
    python3 - << 'END' || fail 'what verify says is not as documented'
import json
for line in open("v.json"):
    result = json.loads(line)
    assert result["version"] and result["machine"]["device"] and result["grid_thw"] and result["rows"]
    assert result["ok"] == all(row["ok"] for row in result["rows"])
    assert {"check", "name", "dtype", "ok"} <= set.intersection(*map(set, result["rows"]))
assert not result["ok"] and "worst distance" in result["rows"][0]["why"]
END
fi
head -c 20000 "$golden_file" > cut.safetensors
expect 3 'cut.safetensors' "$qwenvit" verify --model "$model" --against cut.safetensors
expect 3 'pixel_values' "$qwenvit" verify --model "$golden/qwen4_exp" --against "$golden_file"
expect 3 'missing.mp4' "$qwenvit" verify --model "$model" --clip missing.mp4
expect 3 '/nonexistent' "$qwenvit" verify --model /nonexistent
expect 2 '--model DIR is required' "$qwenvit" verify
expect 2 'exclude each other' "$qwenvit" verify --model "$model" --against a --against-backend ref
expect 2 'multiples of 2' "$qwenvit" verify --model "$model" --grid 1,3,4
rmdir tmp || fail "a temporary checkpoint was left: $(ls tmp)"
unset TMPDIR

# bad input: exit 3, names the file, leaves nothing behind
printf 'not a clip' > text.mp4
: > empty.mp4
expect 3 'text.mp4' "$qwenvit" bench preprocess text.mp4 $quick
expect 3 'text.mp4' "$qwenvit" encode text.mp4 --model "$model" -o g.safetensors
expect 3 'empty.mp4' "$qwenvit" encode empty.mp4 --model "$model" -o g.safetensors
expect 3 'missing.mp4' "$qwenvit" encode missing.mp4 --model "$model" -o g.safetensors
expect 3 '/nonexistent' "$qwenvit" encode grey.ppm --model /nonexistent -o g.safetensors
mkdir bad && cp "$model/config.json" bad
for wrong in 'version https://git-lfs.github.com/spec/v1\n=Git-LFS pointer' \
    '<!DOCTYPE html><html></html>=HTML page' '\037\213\010\0\0\0\0\0\0\0=gzip data'; do
    printf "${wrong%=*}" > bad/model.safetensors
    expect 3 "${wrong##*=}" "$qwenvit" encode grey.ppm --model bad -o g.safetensors
done
head -c 200000 "$model/model.safetensors" > bad/model.safetensors
expect 3 'missing (half a download?)' "$qwenvit" info bad
echo '{"model_type":"qwen3_vl","vision_config":{"depth":0}}' > bad/config.json
expect 3 'bad/config.json: vision_config.depth is 0; it must be' "$qwenvit" info bad
expect 3 'no/such/folder' "$qwenvit" encode grey.ppm --model "$model" -o no/such/folder/g.safetensors
expect 1 '1 of 2 clips failed' "$qwenvit" encode grey.ppm text.mp4 --model "$model" -o many
expect 3 'no/such/folder' "$qwenvit" encode grey.ppm --model "$model" -o g.safetensors \
    --picture no/such/folder/p.png
expect 4 'no backend "tpu"' "$qwenvit" encode grey.ppm --model "$model" -o g.safetensors --backend tpu
expect 2 'no plain kernels' "$qwenvit" info "$model" --backend ref --plain gemm
expect 4 'device 1000' "$qwenvit" info "$model" --device 1000 --backend ref
[ ! -e g.safetensors ] || fail 'a failed encode left a file'
[ -z "$(ls | grep tmp || true)" ] || fail "a temporary file was left: $(ls | grep tmp)"
echo "$n commands, all as expected"
