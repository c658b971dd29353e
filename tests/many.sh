#!/bin/sh
# SPDX-License-Identifier: MIT
# Encodes a folder of N clips and images in all formats that the tests make, a tenth of them broken, and checks that the
# failures shown on a terminal fit on one screen. Then folders and lists as arguments.
# Usage: many.sh QWENVIT GOLDEN WORK WRITE_CLIPS IMAGE_WRITE [N]
set -eu
qwenvit=$1 model=$2/qwen3_vl work=$3 write_clips=$4 image_write=$5 files=${6:-100}
. "$(dirname "$0")/expect.sh"
rm -rf "$work" && mkdir -p "$work/made" "$work/clips/a/b" && cd "$work"
(cd made && "$write_clips" > /dev/null 2>&1)
rm -f made/often.mp4 made/millions.mp4 made/long.mp4 # they take seconds each
head -c 18432 /dev/zero | tr '\0' '\152' > pixels
for image in bmp,bmp,bgr24 tiff,tiff,rgb24 png,png,rgb24 jpg,mjpeg,yuvj420p ppm,ppm,rgb24 pgm,pgm,gray webp,libwebp,yuv420p; do
    IFS=, read -r end encoder format <<X
$image
X
    "$image_write" "$encoder" "$format" 96 64 < pixels > made/image.$end 2> /dev/null || rm made/image.$end
done
i=0
while [ $i -lt "$files" ]; do # hard links to the files that were made, and 10 kinds of broken ones
    for f in made/*.*; do
        [ $i -lt "$files" ] || break
        i=$((i + 1)) end=${f##*.}
        case $((i % 10)) in
            0) head -c $((i % 400)) "$f" > "clips/a/$i.$end" ;;
            [1-4]) ln "$f" "clips/a/$i.$end" ;;
            *) ln "$f" "clips/a/b/$i.$end" ;;
        esac
    done
done
ln made/paff-half.mkv clips/a/damaged.mkv
echo notes > clips/a/notes.txt
lines() { cat out.txt err.txt | wc -l; }
screen() { [ "$(lines)" -le 24 ] || fail "$(lines) lines: $1"; }
small='--backend ref --max-pixels 65536 --max-frames 4'
what="clips --recursive --quiet --model $model $small" # on a terminal progress is one line; here it would be many

expect 1 'cannot be used' "$qwenvit" cache fill $what -o tokens --dry-run
screen 'cache fill --dry-run'
expect 1 ' more: ' "$qwenvit" cache fill $what -o tokens --failures failures
screen 'cache fill'
good=$(sed -n 's/^tokens: \([0-9]*\) done.*/\1/p' out.txt) failed=$(sed -n 's/.* \([0-9]*\) failed;.*/\1/p' out.txt)
echo "$files files of $(ls made | wc -l) kinds: $good done, $failed failed, told in $(lines) lines"
[ "$failed" -ge $((files / 10)) ] || fail 'too few have failed'
tail -n 1 out.txt | grep -q ' frames in .* to load the model); then ' || fail 'the summary does not come last'
grep -q ' with damaged frames' out.txt || fail 'damaged clips are not in the summary'
[ "$(wc -l < failures)" = "$failed" ] || fail 'failures are missing from --failures'
grep -q '^{"key":"clips/a/[0-9a-z./]*","status":"failed","code":"QV_E' failures || fail 'a failure is not a record'
expect 0 "$good ok, $failed failed, " "$qwenvit" cache status tokens
screen 'cache status'
expect 0 '"failures":[{' "$qwenvit" cache status tokens --json
if [ -e /dev/full ]; then
    expect 3 '/dev/full: cannot append' "$qwenvit" cache status tokens --failures /dev/full
    expect 1 '/dev/full: cannot append' "$qwenvit" cache fill $what -o again --failures /dev/full
fi
screen 'cache status --json'

# folders keep their structure, under the name of the folder that was given
mkdir -p two/a two/b/in one && cp made/x264.mp4 two/a/clip.mp4 && cp made/x264.mp4 two/b/clip.mp4 && cp made/image.png two/b/in/x.PNG
expect 0 '3 clips' "$qwenvit" encode two --recursive --model "$model" $small -o made/out
for f in two/a/clip.mp4 two/b/clip.mp4; do [ -s "made/out/$f.safetensors" ] || fail "no $f"; done
expect 0 '' "$qwenvit" encode two/a/ --model "$model" $small -o one
[ -s one/a/clip.mp4.safetensors ] || fail 'the folder two/a has another name'
expect 0 '' "$qwenvit" encode two/a/clip.mp4 --model "$model" $small -o new/
[ -s new/clip.mp4.safetensors ] || fail 'new/ is no folder'
expect 3 "no file in this folder has a clip's or image's extension (--recursive" "$qwenvit" encode two --model "$model" -o new
expect 2 'is given twice' "$qwenvit" encode two/a two/a --model "$model" -o new
expect 2 'two/a/clip.mp4 is given twice' "$qwenvit" cache fill two/a/clip.mp4 two/a/clip.mp4 --model "$model" -o c
expect 2 'give clips or --list, not both' "$qwenvit" cache fill two --list list --model "$model" -o c
expect 2 'no clip given' "$qwenvit" cache fill --model "$model" -o c
expect 0 '3 done' "$qwenvit" cache fill two --recursive --shard 0/1 --model "$model" $small -o c
# lists
printf 'file://%s/two/a/clip%%2emp4\n{"path": "file://%s/two/b/clip.mp4", "key": "k"}\n' "$PWD" "$PWD" > list
expect 0 '2 clips' "$qwenvit" encode --list list --model "$model" $small -o /"$PWD"/new
[ -s new/k.safetensors ] && [ -s "new/$PWD/two/a/clip.mp4.safetensors" ] || fail 'file:// addresses'
echo '{"pth": "x"}' > list
expect 3 'unknown field "pth"; the fields are path, key, fps, start, end, first_frame,' "$qwenvit" encode --list list --model "$model" -o new
# clips in a tar file
tar -cf all.tar two
expect 0 '"key":"all/two/a/clip.mp4","offset":' "$qwenvit" list all.tar
cp out.txt list
expect 0 '3 clips' "$qwenvit" encode --list list --model "$model" $small -o shards
"$qwenvit" info shards/all/two/a/clip.mp4.safetensors > a.txt && "$qwenvit" info new/clip.mp4.safetensors > b.txt
[ "$(sed 1,2d a.txt)" = "$(sed 1,2d b.txt)" ] || fail 'different tokens from a tar file'
tar cf none.tar clips/a/notes.txt
expect 3 "contains no file with a clip's or image's extension" "$qwenvit" list none.tar
# info describes files that are neither models nor clips
expect 0 "all.tar: a tar file of 3 files; 3 with a clip's or image's extension" "$qwenvit" info all.tar
expect 0 '  model      qwen3_vl, weights ' "$qwenvit" info new/clip.mp4.safetensors
expect 0 '"about":{"qwenvit_version":"' "$qwenvit" info new/clip.mp4.safetensors --json
expect 0 "part of a cache" "$qwenvit" info c/part-*
grep -q '^  keys       3, ' out.txt || fail 'the number of keys of a part'
# damaged keys, and unknown keys
at=$("$qwenvit" cache keys c --json | sed -n 's/.*"key":"two.a.clip.mp4".*"part":"\([^"]*\)".*/\1/p')
printf '\377\377\377' | dd of="c/$at" bs=1 seek=$(($(wc -c < "c/$at") - 5000)) conv=notrunc 2> dd.txt
expect 1 '1 bad key,' "$qwenvit" cache check c
grep -q -e '--repair removes the bad keys, and the next run encodes them again' out.txt || fail 'the remedy is not named'
expect 0 '1 bad key,' "$qwenvit" cache check c --repair
expect 0 '2 keys' "$qwenvit" cache check c
expect 0 '1 done' "$qwenvit" cache fill two --recursive --model "$model" $small -o c
expect 1 'c: no key "no key"' "$qwenvit" cache delete c two/a/clip.mp4 'no key'
! grep -q 'no key "two' err.txt || fail 'a key that was there'
echo "$n commands behaved as they should"
