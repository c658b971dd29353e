#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the command as a user does: encode, info, synth, bench, verify, exit codes, error texts.
# Usage: command.sh QWENVIT GOLDEN WORK
set -eu
qwenvit=$1 golden=$2 work=$3
model=$golden/qwen3_vl
. "$(dirname "$0")/expect.sh"
tools=$(cd "$(dirname "$0")/../tools" && pwd)
rm -rf "$work" && mkdir -p "$work" && cd "$work"

# an image and a clip, made by the command's own libraries (a PPM is an image FFmpeg reads)
{ printf 'P6\n96 64\n255\n'; head -c 18432 /dev/zero | tr '\0' '\152'; } > grey.ppm
expect 0 'image' "$qwenvit" info grey.ppm

# usage
expect 0 'SUBCOMMAND' "$qwenvit" --help
expect 0 '  NVDEC    ' "$qwenvit" --version
expect 0 '  FFmpeg   ' "$qwenvit" --version # it also says which backends run here, or why they do not
expect 0 '  cuda     ' "$qwenvit" --version
for s in encode 'cache fill' 'cache status' 'cache keys' 'cache get' 'cache check' 'cache prune' 'cache delete' \
    'cache export' info synth 'bench tower' 'bench job' profile verify; do
    expect 0 'example:' "$qwenvit" $s --help # one screen of 40 lines and 100 columns
    [ "$(wc -l < out.txt)" -le 40 ] || fail "$s --help is longer than a screen"
    ! grep -E '.{101}' out.txt || fail "$s --help is wider than a screen"
done
expect 0 '--help=device ' "$qwenvit" encode --help # options that subcommands share have their own pages
! grep -E '^  --(threads|fps) ' out.txt || fail "encode --help lists options of a page"
expect 0 '  --threads N ' "$qwenvit" encode --help=device
! grep -F -e --model out.txt || fail "--help=device lists options of encode"
expect 0 '  --fps F ' "$qwenvit" encode --help=clips
expect 2 'there is no --help=threads' "$qwenvit" encode --help=threads
expect 2 'there is no --help=device' "$qwenvit" synth --help=device
expect 2 'no subcommand decode' "$qwenvit" decode
expect 2 'no subcommand enocde; did you mean encode?' "$qwenvit" enocde
expect 2 'no subcommand stat; did you mean status?' "$qwenvit" cache stat
expect 0 'usage: qwenvit SUBCOMMAND' "$qwenvit" help
expect 0 'usage: qwenvit encode ' "$qwenvit" help encode
expect 0 '.SH encode' "$qwenvit" help --man # what is installed as manual page and completion has every option
for s in encode 'cache fill' info verify; do
    "$qwenvit" help --man | sed 's/\\-/-/g' > man.txt
    "$qwenvit" $s --help > help.txt && "$qwenvit" $s --help=clips >> help.txt
    for o in $(sed -n 's/^  \(--[a-z-]*\) .*/\1/p' help.txt); do
        case $o in --help*) ;; *) grep -q -e "^.B $o" man.txt || fail "qwenvit.1 lacks $o of $s" ;; esac
    done
done
if command -v bash > /dev/null; then
    expect 0 '' "$qwenvit" help --bash
    cp out.txt completion
    completes() { # WORDS EXPECTED
        [ "$(bash -c '. ./completion; COMP_WORDS=('"$1"'); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _qwenvit; echo ${COMPREPLY[@]}')" = "$2" ] ||
            fail "$1 is not completed to $2"
    }
    completes 'qwenvit enc' encode
    completes 'qwenvit cache st' status
    completes 'qwenvit cache fill --rec' --recursive
    completes 'qwenvit verify --leg' --legend
fi
expect 2 'no option --modle; did you mean --model?' "$qwenvit" encode --modle x grey.ppm
expect 2 '--fps is "0", must be a number above 0, at most 1000000' "$qwenvit" encode grey.ppm --fps 0
expect 2 'fps is 1000000000; must be a number above 0, at most 1000000' "$qwenvit" encode grey.ppm --model m -o no --fps 1e9
expect 2 'grey.ppm: start 1; an image has no seconds' "$qwenvit" info grey.ppm --start 1
expect 0 'cosine        of a row and the other' "$qwenvit" verify --help
expect 2 'no clip given' "$qwenvit" encode --model "$model" -o no
expect 2 '--model DIR is required' "$qwenvit" encode grey.ppm
expect 2 'no option --modell' "$qwenvit" encode --modell x grey.ppm
expect 2 'needs a value' "$qwenvit" encode grey.ppm --model
expect 2 '--num-frames is "0"' "$qwenvit" encode grey.ppm --num-frames 0
expect 2 'must be f32' "$qwenvit" info "$model" --dtype f64

# the work
expect 0 'tokens' "$qwenvit" encode grey.ppm --model "$model" -o a.safetensors --drawing p.png
[ -s a.safetensors ] && [ -s p.png ] || fail 'encode wrote nothing'
expect 0 '"tokens":' "$qwenvit" encode grey.ppm --model "$model" -o b.safetensors --json
for stage in wait_decode_s wait_device_s wait_write_s write_s load_s; do
    grep -q "\"$stage\":[0-9]" out.txt || fail "encode --json does not say $stage"
done
is_rate sampled_frames_per_s frames seconds
is_rate tokens_per_s tokens seconds
cmp a.safetensors b.safetensors || fail 'encoding twice gave other bytes'
# a CPU without AVX-512 has no bf16 in oneDNN
native=cpu own=bf16
! "$qwenvit" info "$model" --backend cpu | grep -q 'does not multiply bf16 natively' || native=ref own=f32
expect 0 'bf16' "$qwenvit" encode grey.ppm --model "$model" -o c.safetensors --dtype bf16 --backend $native
expect 0 'f32' "$qwenvit" encode grey.ppm --model "$model" -o d.safetensors --backend ref --dtype f32
# tokens have the dtype in which the model computes, unless another is asked for
holds() { head -c 2000 "$1" | grep -aqF "\"tokens\":{\"dtype\":\"$2\"" || fail "$1: tokens are not in $2"; }
holds c.safetensors BF16
holds d.safetensors F32
expect 0 'tokens' "$qwenvit" encode grey.ppm --model "$model" -o c.safetensors --dtype bf16 --output-dtype f32 \
    --backend $native
holds c.safetensors F32
expect 0 'tokens' "$qwenvit" encode grey.ppm --model "$model" -o d.safetensors --backend ref --dtype f32 \
    --output-dtype bf16
holds d.safetensors BF16
mkdir many && cp grey.ppm other.ppm
expect 0 'other.ppm' "$qwenvit" encode grey.ppm other.ppm --model "$model" -o many
[ -s many/grey.ppm.safetensors ] && [ -s many/other.ppm.safetensors ] || fail 'not both written'
# two outputs that would be one file are refused before any work
mkdir one two && cp grey.ppm one/same.ppm && cp grey.ppm two/same.ppm
expect 2 'one/same.ppm and two/same.ppm would both be written to same.ppm.safetensors' \
    "$qwenvit" encode one/same.ppm grey.ppm two/same.ppm --model /nonexistent -o many
[ ! -e many/same.ppm.safetensors ] || fail 'of two of one name the first was written'
expect 3 'cannot be made: File exists' "$qwenvit" encode grey.ppm other.ppm --model /nonexistent -o a.safetensors
expect 0 'other.ppm' "$qwenvit" encode grey.ppm other.ppm --model "$model" -o made/new
[ -s made/new/grey.ppm.safetensors ] && [ -s made/new/other.ppm.safetensors ] || fail 'no folder was made'
# something that is neither a file nor a folder has its own error text
for url in s3://bucket/clip.mp4 https://host/clip.mp4; do
    expect 3 "$url: this is an address, and only files of this machine are read" "$qwenvit" info $url
done
expect 3 'hf download Qwen/Qwen3-VL-2B-Instruct --local-dir' "$qwenvit" info Qwen/Qwen3-VL-2B-Instruct
expect 3 'hf download Qwen/Qwen2.5-VL --local-dir' "$qwenvit" encode grey.ppm --model Qwen/Qwen2.5-VL -o no
expect 3 'hf download ORG/Qwen3-VL --local-dir' "$qwenvit" encode grey.ppm --model Qwen3-VL -o no
expect 3 'hf download ORG/NAME --local-dir' "$qwenvit" encode grey.ppm --model /no/such -o no
expect 3 'nobody/clip.mp4: cannot be opened' "$qwenvit" info nobody/clip.mp4
expect 2 'exclude each other' "$qwenvit" encode grey.ppm other.ppm --model "$model" -o many --fps 1 \
    --num-frames 4
# names are bytes; in the output and in JSON, bytes that are not UTF-8 become %XX
odd=$(printf 'odd\377\303.ppm')
if cp grey.ppm "$odd" 2> /dev/null; then
    expect 0 '"output":"many/odd%FF%C3.ppm.safetensors"' "$qwenvit" encode grey.ppm "$odd" other.ppm \
        --model "$model" -o many --json
    [ "$(grep -c '"clip":' out.txt)" = 3 ] && grep -q '"clip":"odd%FF%C3.ppm"' out.txt ||
        fail 'not a record of each'
    head -c 2000 many/odd%FF%C3.ppm.safetensors | grep -aqF '"source":"odd%FF%C3.ppm"' ||
        fail 'no file of an odd name, or another source'
    cp grey.ppm odd%FF%C3.ppm
    expect 2 'would both be written to odd%FF%C3.ppm.safetensors' "$qwenvit" encode "$odd" \
        odd%FF%C3.ppm --model "$model" -o many
    expect 0 '"clip":"odd%FF%C3.ppm"' "$qwenvit" info "$odd" --json
fi
# Names may hold what a terminal obeys (ESC, BEL, C1), a line's end, bytes that are not UTF-8, and controls that
# turn text around. Nothing that is printed has them: names show '?', JSON has escapes.
hostile=$(printf 'a\033]0;x\007\nb\377\302\233\342\200\256c.ppm')
shown='a?]0;x??b??????c.ppm'
told='a?]0;x??b%FF?????c.ppm' # by a result, which has %FF for a byte that is not UTF-8
# shows CODE WORDS LINES COMMAND...: as expect; the output is printable, and stdout has so many lines
shows() {
    lines=$3 code=$1 words=$2; shift 3
    expect "$code" "$words" "$@"
    [ -z "$(cat out.txt err.txt | LC_ALL=C tr -d '\n -~')" ] || fail "a terminal would obey: $*"
    [ "$(lines cat out.txt)" = "$lines" ] || fail "not $lines lines: $*"
}
lines() { "$@" | grep -vc '^unknown: '; } # the line that says that the machine was busy comes and goes
if cp grey.ppm "$hostile" 2> /dev/null; then
    mkdir quiet
    printf '{"path":"a\\u001B]0;x\\u0007\\nb.ppm","key":"k\\u001B\\u009B\\u202E\\n"}\n' > hostile.txt
    cp grey.ppm "$(printf 'a\033]0;x\007\nb.ppm')"
    shows 0 "$told: image" "$(lines "$qwenvit" info grey.ppm)" "$qwenvit" info "$hostile"
    shows 0 '"clip":"a\u001B]0;x\u0007\nb%FF\u009B\u202Ec.ppm"' 1 "$qwenvit" info "$hostile" --json
    shows 0 "$told: 1 frame" 1 "$qwenvit" encode "$hostile" --model "$model" -o hostile.safetensors
    shows 3 "no$shown: cannot be opened" 0 "$qwenvit" info "no$hostile"
    shows 3 'checkpoint' 0 "$qwenvit" info "$(printf 'o\033\302\205rg/na\ame')"
    shows 2 'no option --?]0;x?' 0 "$qwenvit" info "$(printf -- '--\033]0;x\007')"
    shows 2 'no subcommand ?[2J' 0 "$qwenvit" "$(printf '\033[2J')"
    shows 0 'tokens of' 4 "$qwenvit" encode "$hostile" grey.ppm --model "$model" -o quiet --quiet
    expect 0 '' sh -c '"$@" < hostile.txt' - "$qwenvit" encode --list - --model "$model" -o quiet --json=h.json
    shows 0 '1 done' 2 "$qwenvit" cache fill --model "$model" --list hostile.txt -o hostile.cache
    shows 0 '"k\u001B\u009B\u202E\n"' 1 "$qwenvit" cache keys hostile.cache
    shows 0 '"key":"k\u001B\u009B\u202E\n"' 1 "$qwenvit" cache keys hostile.cache --json
    shows 3 'there is no key' 0 "$qwenvit" cache get hostile.cache "$hostile" -o no
    shows 0 '0 failed' "$(lines "$qwenvit" verify --model "$model" --clip grey.ppm --dtype f32 --quiet)" \
        "$qwenvit" verify --model "$model" --clip "$hostile" --dtype f32 --quiet
    shows 0 'resize' "$(lines "$qwenvit" bench preprocess grey.ppm --repeats 1 --threads 1)" \
        "$qwenvit" bench preprocess "$hostile" --repeats 1 --threads 1
    cp -r "$model" "$hostile.model"
    shows 0 "$told.model: qwen3_vl" "$(lines "$qwenvit" info "$model")" "$qwenvit" info "$hostile.model"
    [ -z "$(LC_ALL=C tr -d '\n -~' < h.json)" ] || fail 'JSON in a file lacks escapes'
    rm -r "$hostile.model" "$hostile" quiet
fi
# what quotes strangers is printed by one function (messages.c); --help, pages and the list of subcommands are our own
! grep -nE '(^|[^a-z_])(printf|puts|fputs|putchar|vprintf)\(|fprintf\(stderr' "$tools"/command/*.c "$tools"/verify/*.c \
    "$tools"/bench/*.c | grep -vE '/(messages|options|pages|run|packing)\.c:' || fail 'a tool prints past messages.c'
expect 0 'deepstack' "$qwenvit" info "$model"
grep -q 'conv3d     patchify: kernel = stride = ' out.txt || fail 'info does not say how the Conv3d is run'
grep -qE 'runs on +interpolate +1 x  .*(kernel|plain C)' out.txt || fail 'info does not say what runs it'
expect 0 '"lowering":"patchify","lowering_reason":"kernel = stride = ' "$qwenvit" info "$model" --json
expect 0 'plain C, sums in double' "$qwenvit" info "$model" --backend ref
grep -q 'bits       the same alone and packed' out.txt || fail 'info does not say that ref has the same bits'
expect 0 '"bits_differ":[]' "$qwenvit" info "$model" --backend ref --json
if "$qwenvit" info "$model" --backend cpu > out.txt 2>&1; then
    grep -qE '  gemm +[0-9]+ x  oneDNN [a-z_]+:' out.txt || fail 'info does not name a oneDNN kernel'
fi
expect 0 'conv3d     patchify: kernel = stride = ' "$qwenvit" info grey.ppm --model "$model"
grep -q 'chunks     1 of 1 frame pair, in a capacity of [0-9]* patches' out.txt || fail 'no capacity'
expect 0 'decoders   4.6 GiB of the GPU' "$qwenvit" info "$model" --decode gpu
expect 0 '"decoder_bytes":4966055936' "$qwenvit" info "$model" --decode gpu --json
expect 0 '"decoder_bytes":0' "$qwenvit" info "$model" --json
expect 0 '"lowering":"patchify"' "$qwenvit" info grey.ppm --model "$model" --json
grep -q '"same_bits_packed":' out.txt || fail 'info does not compare a clip alone and packed'
grep -q '"chunk_rows":[0-9]*,"chunks_ahead":[12],.*"device_bytes":[0-9]' out.txt ||
    fail 'info lacks chunks or memory'
grep -q '"kernels":\[{"op":"interpolate","calls":1,"kernel":"' out.txt || fail 'info lacks kernels'
if ONEDNN_MAX_CPU_ISA=AVX2 "$qwenvit" info "$model" --backend cpu > out.txt 2>&1; then
    grep -q 'AVX-512' out.txt || grep -q 'f32 GEMMs may round otherwise at other places' out.txt ||
        fail 'info does not say that bits depend on the place'
fi
expect 0 'on the device' "$qwenvit" info grey.ppm --model "$model" --tf32 --device 0

# a checkpoint that the command makes itself
expect 0 'tensors' "$qwenvit" synth --config "$model" -o synthetic --seed 3
expect 0 'tokens' "$qwenvit" encode grey.ppm --model synthetic -o e.safetensors
expect 0 'tensors' "$qwenvit" synth --config "$model" -o sharded --seed 3 --shards 3
expect 0 'tokens' "$qwenvit" encode grey.ppm --model sharded -o f.safetensors
cmp e.safetensors f.safetensors || fail 'shards gave other tokens'
# names are those of published checkpoints, which are those of transformers' own (golden) towers
names() { head -c 65536 "$1" | tr ',{' '\n\n' | LC_ALL=C grep -ao '"[a-z.]*visual\.[^"]*"' | LC_ALL=C sort; }
for family in qwen2_vl qwen2_5_vl qwen2_5_omni qwen3_vl qwen3_omni_moe qwen3_5 glm4v; do
    expect 0 'tensors' "$qwenvit" synth --config "$golden/$family" -o named --force
    names named/model.safetensors > ours.txt
    names "$golden/$family/model.safetensors" | diff - ours.txt || fail "other names: $family"
    [ -s ours.txt ] || fail "no names: $family"
    expect 0 "${family%_moe}" "$qwenvit" info named
done
# preprocessor files that are missing are told wherever a model is loaded, once
mkdir bare && cp "$model/config.json" "$model/model.safetensors" bare && printf 'grey.ppm\n' | tee bare.txt > whole.txt
missing='qwenvit: bare: missing: preprocessor_config.json, video_preprocessor_config.json. Images have the defaults of'
for use in 'encode grey.ppm -o bare.safetensors' 'encode grey.ppm other.ppm -o bare.out --device 0,0' \
    'cache fill --list bare.txt -o bare.cache' 'info grey.ppm' info 'verify --grid 1,4,4 --dtype f32' \
    'bench tower --grid 1,4,4 --no-limit --repeats 1 --threads 1'; do
    expect 0 "$missing transformers' Qwen2VLImageProcessor: 3136 to 1003520 pixels" "$qwenvit" $use --model bare
    [ "$(grep -c ': missing: ' err.txt)" = 1 ] || fail "told several times: $use"
    expect 0 '' "$qwenvit" $(echo "$use" | sed 's/bare\./whole./g') --model "$model"
    ! grep -q ': missing: ' err.txt || fail "nothing is missing: $use"
done
expect 0 "$missing" "$qwenvit" verify --model "$model" --against-model bare --grid 1,4,4 --dtype f32
expect 0 '"warning":"bare: missing: preprocessor_config.json' "$qwenvit" info bare --json
# what is there is replaced only if the user says so; an output that is an input never is
rm -r named && mkdir named && cp "$model"/*config.json named
expect 0 'tensors' "$qwenvit" synth --config named -o named # there was nothing to lose
cp named/model.safetensors real.safetensors
expect 2 'named/model.safetensors exists, and would be replaced by random weights' \
    "$qwenvit" synth --config named -o named --seed 2
expect 2 'named/model.safetensors exists' "$qwenvit" synth --config "$model" -o named --shards 2
cmp named/model.safetensors real.safetensors || fail 'synth replaced weights'
mv named/model.safetensors named/model-00001-of-00002.safetensors
expect 2 'config.json exists, and would be replaced by a copy' "$qwenvit" synth --config "$model" -o named
expect 2 'named/model-00001-of-00002.safetensors exists' "$qwenvit" synth --config named -o named --shards 2
ln -s ../real.safetensors named/model.safetensors # as in the hub's cache
expect 2 'named/model.safetensors exists' "$qwenvit" synth --config named -o named
rm named/model.safetensors
cmp named/config.json "$model/config.json" || fail 'synth wrote the configuration over itself'
expect 0 'tensors' "$qwenvit" synth --config named -o named --seed 2 --force
expect 0 'tensors' "$qwenvit" synth --config named -o named --seed 3 --force --shards 3
expect 0 'tokens' "$qwenvit" encode grey.ppm --model named -o named.safetensors
cmp named.safetensors f.safetensors || fail '--force left weights that were to be replaced'
cp grey.ppm safe.ppm && mkdir in && cp grey.ppm in/a.safetensors && cp grey.ppm in/model.ppm
cp grey.ppm safe.mp4
expect 2 'safe.mp4 exists, and would be replaced by a made clip' "$qwenvit" synth --clip safe.mp4
expect 2 '--clip x.avi: this file must end in .mp4' "$qwenvit" synth --clip x.avi
input='would be overwritten, but it is'
for same in safe.ppm ./safe.ppm named/../safe.ppm "$PWD/safe.ppm"; do
    expect 2 "safe.ppm $input an input (safe.ppm)" "$qwenvit" encode safe.ppm --model "$model" -o "$same"
done
cp grey.ppm safe.png
expect 2 "safe.png $input an input" "$qwenvit" encode safe.png --model "$model" -o s.safetensors --drawing safe.png
expect 2 "safe.ppm $input an input" "$qwenvit" encode safe.ppm --model "$model" -o s.safetensors --trace safe.ppm
expect 2 "safe.ppm $input an input" "$qwenvit" info safe.ppm --json=safe.ppm
expect 2 "safe.ppm $input an input" "$qwenvit" bench preprocess safe.ppm --json=safe.ppm
echo safe.ppm > one.txt # --json=FILE adds lines to FILE, and prints nothing
for of in safe.ppm "$model" '--list one.txt'; do
    expect 0 '' "$qwenvit" info $of --json=info.json
    [ ! -s out.txt ] || fail "info $of --json=FILE prints"
done
[ "$(grep -c '^{"clip":"safe.ppm"\|^{"model":\|"list":"one.txt"}$' info.json)" = 3 ] || fail 'info --json=FILE: not a line for each'
expect 2 "safe.ppm $input an input" "$qwenvit" verify --model "$model" --clip safe.ppm --json=safe.ppm
expect 2 "named $input an input" "$qwenvit" encode safe.ppm --model named -o named
expect 2 "named $input an input" "$qwenvit" cache fill --model named --list list.txt -o named
expect 2 "named $input an input" "$qwenvit" bench start --model named -o named
expect 2 "config.json $input a file of named" "$qwenvit" encode safe.ppm --model named -o named/config.json
expect 2 "config.json $input a file of named" "$qwenvit" verify --model named --json=named/config.json
# weights may have any name, and a link to them another folder; a new name and a folder in there are free
cp grey.ppm named/pytorch_model.bin && cp grey.ppm named/extra.gguf && cp grey.ppm blob && ln -s ../blob named/linked
for file in named/pytorch_model.bin named/extra.gguf named/preprocessor_config.json blob; do
    expect 2 "$file $input a file of named" "$qwenvit" encode safe.ppm --model named -o "$file"
done
expect 2 'named/new.gguf would be taken for a file of named' "$qwenvit" encode safe.ppm --model named -o named/new.gguf
mkdir named/folder && cp grey.ppm named/folder/safe.ppm.safetensors
expect 0 'tokens' "$qwenvit" encode safe.ppm --model named -o named/folder
rm -r named/folder named/pytorch_model.bin named/extra.gguf named/linked
# two outputs are two files, whether they exist already or not
apart='are the same file, and both would be written'
expect 2 "t.safetensors and ./t.safetensors $apart" "$qwenvit" encode safe.ppm --model "$model" -o t.safetensors --trace ./t.safetensors
cp grey.ppm t.safetensors && ln t.safetensors u.png
expect 2 "u.png $apart" "$qwenvit" encode safe.ppm --model "$model" -o t.safetensors --drawing u.png
expect 2 "nowhere/t and nowhere/t $apart" "$qwenvit" encode safe.ppm --model "$model" -o nowhere/t --trace nowhere/t
expect 2 "many/grey.ppm.safetensors $apart" "$qwenvit" encode grey.ppm other.ppm --model "$model" -o many \
    --json=many/grey.ppm.safetensors
cmp grey.ppm t.safetensors || fail 'an output that is two was written'
expect 0 '' "$qwenvit" encode safe.ppm --model "$model" -o t.safetensors --trace /dev/null --json=/dev/null
printf '%s\n' '{"path":"safe.ppm","key":"copy/model-00001-of-00003"}' > in/list
expect 2 "an input (in/list)" "$qwenvit" encode --list in/list --model "$model" -o in/x --json=in/list
expect 2 "safe.ppm $input an input" "$qwenvit" encode --list in/list --model "$model" -o in/x --trace safe.ppm
expect 2 "safe.ppm $input an input" "$qwenvit" cache fill --list in/list --model "$model" -o in/c --json=safe.ppm
expect 2 "safe.ppm $input an input" "$qwenvit" info --list in/list --model "$model" --json=safe.ppm
cp -r named in/copy # a list's outputs, one by one
expect 2 "copy/model-00001-of-00003.safetensors $input a file of in/copy" \
    "$qwenvit" encode --list in/list --model in/copy -o in
printf '%s\n' '{"path":"safe.ppm","key":"list"}' > in/list.safetensors
expect 2 "in/list.safetensors $input an input" "$qwenvit" encode --list in/list.safetensors --model "$model" -o in
printf '%s\n' '{"path":"in/a.safetensors","key":"a"}' > in/list
expect 2 "in/a.safetensors $input an input" "$qwenvit" encode --list in/list --model "$model" -o in
expect 2 "in/a.safetensors $input an input" "$qwenvit" encode in/a.safetensors --model "$model" -o in/a.safetensors
for kept in safe.ppm in/a.safetensors in/model.ppm; do
    cmp grey.ppm $kept || fail "$kept was overwritten"
done

# memory does not grow with the clip: 768 frames take at most 64 MiB more than 16 frames of the same size. A
# sanitizer keeps freed memory, so the figure means nothing there, and fewer frames are enough.
many_frames=768
[ -z "${QV_SANITIZED:-}" ] || many_frames=64
expect 0 'motion.mp4: 4 seconds' "$qwenvit" synth --clip motion.mp4
expect 0 '100 frames at 25 fps' "$qwenvit" info motion.mp4
expect 1 '100 frames at 25 fps' "$qwenvit" info missing.mp4 motion.mp4 # the other clips are done all the same
for frames in 16 $many_frames; do
    expect 0 "\"frames\":$frames," "$qwenvit" encode motion.mp4 --model "$model" -o long.safetensors \
        --num-frames $frames --max-pixels 100000000 --json
    eval "rss_$frames=$(sed 's/.*"peak_rss_bytes":\([0-9]*\).*/\1/' out.txt)"
    cp long.safetensors long_$frames.safetensors
done
eval "grew=\$((rss_$many_frames - rss_16))"
[ -n "${QV_SANITIZED:-}" ] || [ "$grew" -lt 67108864 ] || fail "768 frames took $grew bytes more than 16"
# the command overlaps decoding with encoding, and still gives the same bytes every time
expect 0 'tokens' "$qwenvit" encode motion.mp4 --model "$model" -o long.safetensors --num-frames 16 \
    --max-pixels 100000000
cmp long.safetensors long_16.safetensors || fail 'encoding a clip twice gave other bytes'
# --like: info and the file say whose rules are used, and other names are refused with an error text
like='--like qwen-vl-utils'
expect 0 '20 frames of 320x256: grid_thw 10,16,20, as transformers does it' \
    "$qwenvit" info motion.mp4 --fps 5
expect 0 '8 frames of 448x320: grid_thw 4,20,28, as qwen-vl-utils does it' \
    "$qwenvit" info motion.mp4 $like
expect 0 '"like":"qwen-vl-utils"' "$qwenvit" info motion.mp4 $like --json
grep -q '"sampled_fps":2.0,' out.txt || fail 'info does not say the sampled rate'
expect 0 '560 tokens' "$qwenvit" encode motion.mp4 --model "$model" -o like.safetensors $like
head -c 4000 like.safetensors | grep -aqF '\"like\":\"qwen-vl-utils\"' || fail 'no like in metadata'
head -c 4000 like.safetensors | grep -aqF '\"second_per_grid_ts\":1.0' || fail 'no seconds per grid'
head -c 4000 long_16.safetensors | grep -aqF '\"like\":\"transformers\"' || fail 'no like in metadata'
expect 4 'GPU 15 decodes nothing' "$qwenvit" info motion.mp4 --decode gpu --device 15
expect 0 '16 frames of 160x96' "$qwenvit" info motion.mp4 $like --fps 4 --total-pixels 1 \
    --min-pixels 20000 --max-pixels 30000
expect 2 'must be transformers or qwen-vl-utils' "$qwenvit" info motion.mp4 --like qwen
expect 2 'cap_pixels goes with transformers' "$qwenvit" encode motion.mp4 --model "$model" \
    -o no.safetensors $like --cap-pixels
expect 2 'total_pixels goes with the rules of qwen-vl-utils' "$qwenvit" encode motion.mp4 --model "$model" \
    -o no.safetensors --total-pixels 9
expect 2 'take 102 frames; 2 to 100' "$qwenvit" info motion.mp4 $like --num-frames 102
expect 2 'most pixels are 5, below the least' "$qwenvit" info motion.mp4 $like --max-pixels 5
[ ! -e no.safetensors ] || fail 'refused options wrote a file'
# several chunks under way at once, and an image of each chunk's own frames
expect 0 'tokens' "$qwenvit" encode motion.mp4 --model "$model" -o a.safetensors --num-frames 15 \
    --chunk-rows 320 --drawing a.png
expect 0 'tokens' "$qwenvit" encode motion.mp4 --model "$model" -o b.safetensors --num-frames 15 \
    --chunk-rows 320 --drawing b.png
cmp a.safetensors b.safetensors && cmp a.png b.png || fail 'small chunks gave other bytes'
# a frame pair with more patches than that uses the plan that suits the clip
expect 0 '640 tokens' "$qwenvit" encode motion.mp4 --model "$model" -o a.safetensors --num-frames 15 \
    --chunk-rows 100

expect 0 'lists ' "$qwenvit" info "$model"
# a list has a path or JSON per line, and folders of keys are made; a wrong line is refused before any work
mkdir listed
cat > list.txt << 'END'
grey.ppm
{"path":"motion.mp4","key":"deep/er/motion","max_frames":6}

{"path":"missing.mp4"}
{"path":"motion.mp4","key":"other","fps":1,"max_pixels":400000}
{"path":"listed","key":"folder"}
END
expect 1 '2 of 5 clips failed' "$qwenvit" encode --list list.txt --model "$model" -o listed --json
grep -q '"job":{"clips":5,"failed":2,.*"limit":"[a-z]*",.*"not_done":0,"interrupted":false,"stages":{"decode_s":' \
    out.txt || fail 'no record of the job'
is_rate sampled_frames_per_s frames seconds
is_rate tokens_per_s tokens seconds
# each clip has a record, with an error text if it failed; progress has a record at least at the beginning
[ "$(grep -c '^{"clip":' out.txt)" = 5 ] && head -n 1 out.txt | grep -q '^{"progress":{"total":5,"done":' &&
    grep -q '^{"clip":"motion.mp4","key":"deep/er/motion","status":"ok","output":' out.txt &&
    grep -q '^{"clip":"listed","key":"folder","status":"failed","code":"QV_EIO","error":"listed: not a regular' \
        out.txt || fail 'no record of each clip, or none of progress'
[ "$(cd listed && find . -type f | LC_ALL=C sort | tr '\n' ' ')" = \
    './deep/er/motion.safetensors ./grey.ppm.safetensors ./other.safetensors ' ] || fail 'other files'
mkdir again && expect 1 '2 of 5 clips failed' sh -c '"$@" < list.txt' - "$qwenvit" encode --list - \
    --model "$model" -o again --device 0,0 --quiet
diff -r listed again > /dev/null || fail 'a list from standard input, on two devices, gave other files'
rm -r listed/* again
expect 1 ', of which loading the model took ' "$qwenvit" encode --list list.txt --model "$model" -o listed \
    --trace t.json
if command -v python3 > /dev/null; then
    python3 - << 'END' || fail 'a trace is not as documented'
import json
events = [e for e in json.load(open("t.json"))["traceEvents"] if e["ph"] == "X"]
assert {e["name"] for e in events} == {"decode", "push", "pull", "sink"}
assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in events)
assert {e["args"]["key"] for e in events} > {"grey.ppm", "deep/er/motion", "missing.mp4"}
END
fi
rm -r listed/*
# a stretch of a clip, given by a line or by options, has the frames of the whole clip
sampling='--fps 12.5 --min-frames 1'
cat > cuts.txt << 'END'
{"path":"motion.mp4","key":"cut","start":1.6,"end":2.4}
{"path":"motion.mp4","key":"late","start":3.6}
{"path":"motion.mp4","key":"behind","start":4}
{"path":"grey.ppm","key":"picture","end":1}
END
expect 1 '2 of 4 clips failed' "$qwenvit" encode --list cuts.txt --model "$model" -o listed $sampling
grep -qF 'motion.mp4: start 4: no frame lies in there; of its 100, 25 a second, the last is at 3.96' err.txt &&
    grep -qF 'grey.ppm: start 0, end 1; an image has no seconds' err.txt || fail 'words of a cut'
cp motion.mp4 copy.mp4 # several clips, so that they are packed as those of a list are
expect 0 'tokens' "$qwenvit" encode motion.mp4 copy.mp4 --model "$model" -o many $sampling --start 1.6 --end 2.4
cmp many/motion.mp4.safetensors listed/cut.safetensors || fail 'a cut by options differs from one by a line'
grep -aqF '\"source_frames\":100,\"first_frame\":40,\"cut_frames\":20,\"sampled_frames\":10,' listed/cut.safetensors ||
    fail 'the metadata of a cut'
expect 0 'cut        20 frames from number 40 on: 1.6 s to 2.4 s' "$qwenvit" info motion.mp4 --start 1.6 --end 2.4
expect 2 'start 1.61, end 1.63: no frame lies in there' "$qwenvit" info motion.mp4 --start 1.61 --end 1.63
expect 2 '--start is "-1"' "$qwenvit" info motion.mp4 --start -1
expect 2 '--end is "nan"' "$qwenvit" info motion.mp4 --end nan
expect 2 'end (1) must be greater than start (2)' "$qwenvit" encode motion.mp4 --model "$model" -o many --start 2 --end 1
expect 2 'lines of --list have their own' "$qwenvit" encode --list cuts.txt --model "$model" -o listed --end 1
rm -r listed/* many/motion.mp4.safetensors many/copy.mp4.safetensors copy.mp4
# clips inside a file, as in a tar shard
cat grey.ppm motion.mp4 grey.ppm > shard.tar
at=$(wc -c < grey.ppm) size=$(wc -c < motion.mp4)
printf '{"path":"shard.tar","key":"inside","offset":%d,"bytes":%d}\nmotion.mp4\n' $((at)) $((size)) > shard.txt
printf '{"path":"shard.tar","key":"last","offset":%d}\ngrey.ppm\n' $((at + size)) >> shard.txt
expect 0 'tokens' "$qwenvit" encode --list shard.txt --model "$model" -o listed
for pair in inside:motion.mp4 last:grey.ppm; do
    tail -c 10000 listed/${pair%:*}.safetensors > inside.bin
    tail -c 10000 listed/${pair#*:}.safetensors | cmp - inside.bin || fail "${pair%:*} has other tokens"
done
printf '{"path":"shard.tar","offset":%d,"bytes":%d}\n' $((at)) $((at + size + 1)) > shard.txt
expect 1 "the file has $((2 * at + size))" "$qwenvit" encode --list shard.txt --model "$model" -o listed
rm -r listed/*
# refused LINE WORDS
refused() {
    printf 'grey.ppm\n%b\n' "$1" > wrong.txt
    expect 3 "wrong.txt:2: $2" "$qwenvit" encode --list wrong.txt --model /nonexistent -o listed
}
refused grey.ppm 'key "grey.ppm" was in line 1 before'
refused ./grey.ppm 'the file of key "grey.ppm" was in line 1 before'
refused '{"path":"a","key":"grey.ppm"}' 'key "grey.ppm" was in line 1 before'
refused '{"path":"a"' 'neither a path nor a JSON object'
refused '{"path":"a","path":"b"}' 'neither a path nor a JSON object'
refused '{"key":"a"}' 'no "path"'
refused '{"path":7}' '"path" must be a text'
refused '{"path":"a","fps":0}' '"fps" must be a number above 0'
refused '{"path":"a","max_frames":1.5}' '"max_frames" must be an integer from 1 up'
refused '{"path":"a","offset":-1}' '"offset" must be an integer from 0 up'
refused '{"path":"a","colour":"red"}' 'there is no field "colour"'
refused '{"path":"a","start":-1}' '"start" must be a number from 0 up'
refused '{"path":"a","start":"1"}' '"start" must be a number from 0 up'
refused '{"path":"a","end":0}' '"end" must be a number above 0'
refused '{"path":"a","start":2,"end":2.0}' '"end" (2) must be greater than "start" (2)'
refused '{"path":"a","key":"b/../../c"}' 'key "b/../../c": a file is to be named by it'
refused '{"path":"a","key":"b/"}' 'key "b/": a file is to be named by it'
refused '# clips' '"# clips" is a comment, which a list does not have'
refused '#a' '"#a" is a comment, which a list does not have: take it out (a file of this name is {"path": "#a"})'
refused [ '"[" begins a JSON array: write an object a line'
refused __a 'key "__a": one must not begin with "__"'
refused 'a\000b' 'a NUL byte, number 2 of the line'
for header in path Path,key 'image\tcaption'; do
    printf "$header\ngrey.ppm\n" > wrong.txt
    expect 3 "names a table's columns: write a path a line" "$qwenvit" encode --list wrong.txt \
        --model /nonexistent -o listed
done
# blank lines count
printf 'grey.ppm\n\n \ngrey.ppm\n' > wrong.txt
expect 3 'wrong.txt:4: key "grey.ppm" was in line 1 before' "$qwenvit" encode --list wrong.txt \
    --model /nonexistent -o listed
[ -z "$(ls listed)" ] || fail 'work was done for a list that is wrong'
# lists of editors on Windows, blank lines, a name that begins with # as JSON
cp grey.ppm '#grey.ppm'
printf '\357\273\277grey.ppm\r\n  \r\n  {"path": "#grey.ppm"}\r\n' > odd.txt
expect 0 'tokens' "$qwenvit" encode --list odd.txt --model "$model" -o odd
[ "$(cd odd && echo *)" = '#grey.ppm.safetensors grey.ppm.safetensors' ] || fail 'lines of an odd list'
expect 3 'nolist.txt: cannot be opened' "$qwenvit" encode --list nolist.txt --model "$model" -o listed
expect 2 'exclude each other' "$qwenvit" encode --list list.txt grey.ppm --model "$model" -o listed
expect 3 'cannot be made: File exists' "$qwenvit" encode --list list.txt --model /nonexistent -o grey.ppm
expect 2 'it runs on one device' "$qwenvit" info "$model" --device 0,1
expect 0 'backend    ref ' "$qwenvit" info "$model" --device ref
expect 4 'cuda' "$qwenvit" info "$model" --device cuda:1000
expect 2 '--device is "cuda:1", must be an index' "$qwenvit" info "$model" --backend cpu --device cuda:1
expect 2 '--device is "x"' "$qwenvit" encode grey.ppm --model "$model" -o many --device x
expect 4 'device 1000' "$qwenvit" encode grey.ppm --model "$model" -o many --device 0,1000
expect 0 'tokens' "$qwenvit" encode grey.ppm --model "$model" -o many --device all

# measuring: tables for people, and one record per line for machines, appended to a file
quick='--repeats 1 --threads 1'
for run in 1 2; do
    expect 0 'over_limit' "$qwenvit" bench tower --model synthetic --grid 1,4,4 --backend cpu \
        --dtype $own $quick --json=r.json
done
[ "$(grep -vc '"way":"floor"' r.json)" = 8 ] || fail "not a record for each way"
expect 0 'chunks 3  fill' "$qwenvit" bench tower --model synthetic --grid 5,4,4 --chunk-rows 32 \
    --no-limit $quick --json=r.json
printf '# sizes\n1,4,4\n1,8,6 # an image\n\n2,4,6\n1,2,2\n3,4,4\n1,4,10\n' > grids.txt
for backend in cpu ref; do
    expect 0 'packed limit' "$qwenvit" bench tower --model synthetic --pack grids.txt \
        --chunk-rows 128 --dtype f32 $quick --backend $backend --json=r.json
done
printf '# small\n\ncausal: d=3 h=4 w=6 c=8 o=8 kernel=3,3,3 pad_front=2,1,1 pad_back=0,1,1 %s\n' \
    'causal=zeros layout=channels_last # as in a VAE' > shapes.txt
expect 0 'chosen' "$qwenvit" bench conv3d --shapes shapes.txt $quick --json=r.json
XDG_CACHE_HOME=$PWD/cache # the user's own cache is not touched
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
expect 0 '  patchify        ' "$qwenvit" bench conv3d --shapes shapes.txt --lowering patchify $quick \
    --dtype f32
expect 0 'over_patchify' "$qwenvit" bench patch-embed --model "$model" --rows 8 --dtype f32 $quick \
    --json=r.json
grep -q 'GEMM alone' out.txt && grep -q 'over_floor' out.txt || fail 'no GEMM alone, no floor'
expect 0 'over_m1' "$qwenvit" bench gemm --model "$model" --rows 2 --dtype f32 $quick --json=r.json
for weights in q4g64 q8_0; do
    expect 0 'over_copy' "$qwenvit" bench gemm --shape 40,64 --weights $weights --rows 2 \
        --dtype f32 $quick --json=r.json
done
expect 2 'must be q4g64, q8g64' "$qwenvit" bench gemm --weights stored
expect 2 'must be bf16 or stored, or of bench gemm q4g64' "$qwenvit" bench gemm --weights q5
expect 2 'must be bf16 or stored' "$qwenvit" info --weights q4g64 "$model"
expect 2 'which groups of 64 do not divide' "$qwenvit" bench gemm --shape 40,65 --weights q4g64 --dtype f32 $quick
expect 0 'resize' "$qwenvit" bench preprocess --size 90,160 $quick --json=r.json
expect 0 'sampled_frames_per_s' "$qwenvit" bench preprocess motion.mp4 $quick --json=r.json
job="$qwenvit bench job --model $model --chunk-rows 16 --clips 3 --seconds 0.125 --size 64,64 $quick"
expect 2 '-o OUT is required' "$qwenvit" bench job --model "$model"
expect 2 'clips of at most 2731 s' $job -o jobs --seconds 2732
for bench in gemm start; do
    expect 2 'it runs on one device' "$qwenvit" bench $bench --model "$model" --device 0,1
done
expect 0 'over_slowest' $job -o jobs
expect 0 '"over_slowest":' $job -o jobs --json --device 0,0
[ "$(wc -l < out.txt)" -ge 6 ] && grep -q '"case":"qwen3_vl, 3 clips of 0.125 s 64x64, 2 devices","way":"encode"' out.txt || fail 'no record a way'
grep '"way":"device"' out.txt | grep -q '"devices":1,' || fail 'one device is not timed alone'
grep '"way":"devices"' out.txt | grep -q '"devices":2,.*"times_one":[0-9]' || fail 'two are not set against one'
grep '"way":"discard"' out.txt | grep -q '"tokens":24,.*"limit":"' || fail 'a job is not told of'
[ "$(ls jobs | sed 's/.*mp4/CLIP/' | tr '\n' ' ')" = 'CLIP CLIP CLIP clips.jsonl ' ] || fail 'bench job leaves what it wrote'
echo nobody.mp4 > nobody.txt
expect 3 'nobody.mp4' $job -o jobs --list nobody.txt
[ "$(ls jobs | sed 's/.*mp4/CLIP/' | tr '\n' ' ')" = 'CLIP CLIP CLIP clips.jsonl ' ] || fail 'bench job leaves what it wrote'
start="$qwenvit bench start --model $model $quick --backend ref"
expect 2 '-o OUT is required' "$qwenvit" bench start --model "$model"
expect 0 'start on ref' $start -o start
expect 0 '"case":"qwen3_vl, motion.mp4","way":"encode"' $start motion.mp4 -o start --json
grep -q '"bench":"start".*"first_ms":[0-9]' out.txt || fail 'the first start is not told apart'
expect 3 'encode nobody.mp4 ended with exit code 3' $start nobody.mp4 -o start
expect 4 'encode start/clip.mp4 ended with exit code 4' $start --device 1000 -o start
expect 3 'cannot be made' $start -o no/such/folder
expect 4 'ended with exit code 4' "$qwenvit" bench cache --model "$model" --device 1000 --keys 2 -o made
[ "$(ls start)" = clip.mp4 ] || fail 'bench start leaves what it wrote'
expect 0 'deepstack_merger_list (2)' "$qwenvit" profile --model "$model" --grid 1,4,4 $quick \
    --json=r.json --trace trace.json
expect 0 'by layer' "$qwenvit" profile --model "$model" motion.mp4 --num-frames 4 $quick
expect 0 'as encoded, 1 frame' "$qwenvit" profile --model "$model" grey.ppm $quick
grep -q '"ph":"X"' trace.json || fail 'no events traced'
if command -v python3 > /dev/null; then
    python3 - << 'END' || fail 'records or trace are not as documented'
import json
fields = {"bench", "case", "way", "dtype", "median_ms", "p90_ms", "repeats", "flops", "bytes",
          "tflops_per_s", "gb_per_s", "machine", "version", "commit", "day"}
records = [json.loads(line) for line in open("r.json")]
def holds(r, name, least, most=1e9): # or it is withheld, as on a machine that other tests use
    return bool(r["withheld"][name]) if name not in r else least <= r[name] <= most
for r in records:
    assert fields <= set(r) and r["median_ms"] > 0 and r["repeats"] > 0, r
    assert len(r["day"]) == 10 and r["day"] >= "2026-01-01", r
    assert bool(r.get("kernel")) == (r["bench"] == "profile"), r
    assert ("desc" in r and "chosen" in r) == (r["bench"] in ("conv3d", "patch-embed")), r
    assert holds(r, "roof_share", 0, 1), r
    assert all(holds(r["machine"], rate, 1e-6) for rate in ("copy_gb_per_s", "roof_gb_per_s")), r
assert {r["bench"] for r in records} == {"tower", "conv3d", "patch-embed", "gemm", "preprocess",
                                         "profile"}
tower = {way: [r for r in records if r["bench"] == "tower" and r["way"] == way]
         for way in ("encode", "whole call", "limit", "floor", "streamed")}
floors = [r for r in tower["encode"] if "floor_ms" in r]
assert [len(rs) for rs in tower.values()] == [3, 3, 2, len(floors), 3]
assert all(holds(r, "over_limit", 1) and holds(r, "over_floor", 1) for r in tower["encode"][:2])
assert all(holds(r["parts"], "between_ms", 0) for r in tower["encode"][:2])
for r in (r for r in tower["whole call"] if r["patches"] == 16):
    assert any(abs(e["median_ms"] * r["over_encode"] / r["median_ms"] - 1) < 1e-6
               for e in tower["encode"]), r
clip = tower["streamed"][-1]
assert clip["case"] == "synthetic 80 patches" and clip["chunks"] == 3 and clip["us_per_patch"] > 0
assert tower["encode"][-1]["case"] == "synthetic 80 patches" and "limit_ms" not in tower["encode"][-1]
for r in (r for r in records if r["way"] == "packed"):
    assert r["items"] == 6 and r["patches"] == 204 and r["chunks"] == 2 and r["capacity"] == 128, r
    assert abs(r["fill"] - 204 / 256) < 1e-6 and holds(r, "over_limit", 1), r
    assert holds(r, "over_floor", 1), r
    assert abs(r["tokens_per_s"] * r["median_ms"] / 1e3 - 51) < 1e-3, r
embed = {r["way"]: r for r in records if r["bench"] == "patch-embed"}
assert embed["GEMM alone"]["median_ms"] > 0 and embed["patchify"]["over_gemm"] > 0
assert holds(embed["patchify from bytes"], "over_floor", 1)
assert sum(r["chosen"] for r in records if r["bench"] == "conv3d") == 1
events = json.load(open("trace.json"))["traceEvents"]
spans = [e for e in events if e["ph"] == "X"]
assert len(spans) > 30 and all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans)
assert {e["name"] for e in spans} > {"patch_embed", "blocks.0", "merger", "gemm", "attention"}
END
fi
expect 2 'usage: qwenvit bench SUBCOMMAND' "$qwenvit" bench
expect 2 'no subcommand nothing' "$qwenvit" bench nothing
expect 0 '  tower ' "$qwenvit" bench --help
expect 0 'over_slowest ' "$qwenvit" bench --legend # it explains what the tables show
for option in 'gemm --grid 1,4,4' 'tower --keys 3' 'conv3d --fps 2' 'cache --clips 3'; do
    expect 2 "no option --" "$qwenvit" bench $option # of another bench
done
expect 0 '1 of 6 were timed' "$qwenvit" bench gemm --rows 1 --backend cpu --dtype f32 $quick --budget 0.001 --json=none.json
[ "$(wc -l < none.json)" = 1 ] || fail 'a bench goes on after its budget'
expect 2 '--model DIR is required' "$qwenvit" bench tower
expect 2 '--model DIR is required' "$qwenvit" profile
expect 2 'one clip at most' "$qwenvit" profile --model "$model" a.mp4 b.mp4
echo '1,4' > grids.txt
expect 3 'grids.txt:1: "1,4" is not of the form t,h,w' "$qwenvit" bench tower --model synthetic \
    --pack grids.txt $quick
printf '1,4,4\n1,3,4\n' > grids.txt
expect 3 'grids.txt:2: an item: grid_thw is 1,3,4' "$qwenvit" bench tower --model synthetic \
    --pack grids.txt $quick
echo '1,16,16' > grids.txt
expect 3 'grids.txt:1: 256 patches of a frame pair; a chunk takes 64' "$qwenvit" bench tower \
    --model synthetic --pack grids.txt --chunk-rows 64 $quick
expect 2 '--lowering is "sideways", no such lowering' "$qwenvit" bench conv3d --lowering sideways
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

# verify: is it the same model?
golden_file=$model/expected.safetensors
small='--grid 1,8,12 --threads 2'
mkdir tmp && TMPDIR=$PWD/tmp && export TMPDIR
expect 0 '0 failed' "$qwenvit" verify --model "$model" $small --backend $native
grep -q 'blocks.2 *bf16' out.txt && grep -q 'channels-last *f32' out.txt || fail 'rows are missing'
expect 0 '0 failed' "$qwenvit" verify --model "$model" --grid 1,4,4 # an input of few rows
expect 0 'compared: qwenvit with itself' "$qwenvit" verify --model "$model" --grid 1,4,4 --dtype f32
expect 0 '0 failed' "$qwenvit" verify --model "$model" --clip motion.mp4 --dtype f32
"$qwenvit" info motion.mp4 --model "$model" > info.txt # it samples and sizes the clip as encode does
frames=$(sed -n 's/.*sampled    \([0-9]*\) frames of \([0-9x]*\): .*/\1 sampled frames as \2/p' info.txt)
grep -q "of $frames" out.txt || fail "not $frames"
expect 0 'cosine        of a row and the other' "$qwenvit" verify --model "$model" $small --dtype f32 --legend
expect 0 '1 of 1 sampled frames' "$qwenvit" verify --model "$model" --clip grey.ppm --dtype f32
expect 0 '"ok":true' "$qwenvit" verify --model "$golden/qwen3_vl_moe" $small --quiet --json=v.json --json
[ ! -s err.txt ] || fail '--quiet was not'
expect 0 '"check":"against"' "$qwenvit" verify --model "$model" --against "$golden_file" --json
cat out.txt >> v.json
expect 0 'which another program computed' "$qwenvit" verify --model "$model" --against "$golden_file" --dtype f32
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

# a tower in a GGUF file: wherever a folder is taken
gguf=$golden/../fuzz/corpus/gguf
mkdir mmproj && cp "$gguf/qwen3" mmproj/mmproj-F32.gguf && cp "$gguf/qwen2" qwen2.gguf && : > mmproj/config.json
tiny='--min-pixels 64 --max-pixels 256'
expect 0 'not said   the file does not say bounds of pixels' "$qwenvit" info mmproj/mmproj-F32.gguf
expect 0 'file       GGUF of 28 tensors: 28 F32' "$qwenvit" info mmproj
expect 0 '"note":"the file does not say' "$qwenvit" info mmproj --json
expect 0 'qwen2_vl vision tower' "$qwenvit" info qwen2.gguf
expect 0 '' "$qwenvit" encode grey.ppm --model mmproj $tiny -o gguf1.safetensors
expect 0 '' "$qwenvit" encode grey.ppm --model mmproj/mmproj-F32.gguf $tiny -o gguf2.safetensors
printf 'grey.ppm\n' > gguf.txt
expect 0 '1 done' "$qwenvit" cache fill --model mmproj --list gguf.txt -o gguf.cache $tiny
expect 0 '1 were there' "$qwenvit" cache fill --model mmproj/mmproj-F32.gguf --list gguf.txt -o gguf.cache $tiny
expect 0 'over_widened' "$qwenvit" bench tower --model qwen2.gguf --weights stored --grid 1,4,4 --no-limit $quick
expect 3 'this cache has "model_type"' "$qwenvit" cache fill --model qwen2.gguf --list gguf.txt -o gguf.cache $tiny
expect 0 '0 failed' "$qwenvit" verify --model mmproj --grid 1,4,4
against="$qwenvit verify --model mmproj --grid 1,4,4 --against-model"
expect 0 'no bar was asked for (--max-distance X), so this is no verdict' $against mmproj/mmproj-F32.gguf
! grep -qE ' ok$|failed' out.txt || fail 'a verdict without a bar'
expect 0 '0 failed' $against mmproj/mmproj-F32.gguf --max-distance 0.1
expect 0 '"ok":true,"rows"' $against mmproj/mmproj-F32.gguf --max-distance 0.1 --json
expect 2 '--max-distance goes with --against-model' "$qwenvit" verify --model mmproj --max-distance 1
expect 2 'must be a number above 0' $against mmproj --max-distance nan
expect 0 'the model'"'"'s own bf16' "$qwenvit" verify --model "$model" --against-model synthetic --grid 1,4,4 --json
grep -q '"name":"tokens","dtype":"f32","ok":null' out.txt && grep -q '"ok":null,"rows"' out.txt ||
    fail 'another model is not told in f32, or is judged without a bar'
expect 1 'against-model: patch_embed in f32: worst distance is' "$qwenvit" verify --model "$model" \
    --against-model synthetic --grid 1,4,4 --max-distance 0.3 --json
grep -q '"name":"tokens","dtype":"f32","ok":false' out.txt && grep -q '"ok":false,"rows"' out.txt ||
    fail 'another model passes'
! grep -q '"name":"tokens"[^}]*"worst":0' out.txt || fail 'another model is not told to be one'
expect 3 'its depth is 3, that of mmproj is 1' "$qwenvit" verify --model mmproj --against-model "$model" --grid 1,4,4
expect 0 'mean 0.25 0.5 0.75, std 1 1 2' "$qwenvit" info mmproj --image-mean 0.25,0.5,0.75 --image-std 1,1,2
expect 2 '--image-mean is "1,2", must be three numbers' "$qwenvit" info mmproj --image-mean 1,2
expect 2 'image_std[2] is 0; must be a number from' "$qwenvit" info mmproj --image-std 1,1,0
cp mmproj/mmproj-F32.gguf mmproj/mmproj-F16.gguf
expect 3 'has 2 GGUF files' "$qwenvit" encode grey.ppm --model mmproj -o g.safetensors
head -c 1000 qwen2.gguf > cut.gguf
printf 'a text, and no model' > text.gguf
expect 3 'cut.gguf: the number of tensors is 24, but only' "$qwenvit" info cut.gguf
expect 3 'text.gguf: is no GGUF file' "$qwenvit" encode grey.ppm --model text.gguf -o g.safetensors

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
# options that do not suit one clip cost only that clip (here an image may be smaller than a clip)
cp -r "$model" capped && chmod -R u+w capped
sed 's/16777216/70000/' "$model/preprocessor_config.json" > capped/preprocessor_config.json
capped="--model capped --min-pixels 80000 --num-frames 4"
expect 2 'min_pixels' "$qwenvit" encode grey.ppm $capped -o many
rm -f many/*
expect 1 '1 of 2 clips failed' "$qwenvit" encode grey.ppm motion.mp4 $capped -o many
[ "$(ls many)" = motion.mp4.safetensors ] || fail 'a clip was not encoded behind one that failed'
expect 3 'no/such/folder' "$qwenvit" encode grey.ppm --model "$model" -o g.safetensors \
    --drawing no/such/folder/p.png
expect 4 'no backend "tpu"' "$qwenvit" encode grey.ppm --model "$model" -o g.safetensors --backend tpu
expect 2 'no naive kernels' "$qwenvit" info "$model" --backend ref --naive gemm
expect 4 'device 7' "$qwenvit" info "$model" --backend ref:7
expect 4 'device 7' "$qwenvit" info "$model" --device ref:7
expect 4 'no backend has a device 1000: .*; ref: device 1000' "$qwenvit" info "$model" --device 1000
expect 2 '"ref:x"' "$qwenvit" info "$model" --backend ref:x
expect 4 'device 1000' "$qwenvit" info "$model" --device 1000 --backend ref
[ ! -e g.safetensors ] || fail 'a failed encode left a file'
[ -z "$(ls | grep tmp || true)" ] || fail "a temporary file was left: $(ls | grep tmp)"
echo "$n commands, all as expected"
