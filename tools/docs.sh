#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes docs/measurements.md, the tables of README.md and the images in docs/ from the files in
# docs/measurements. The images need matplotlib; PYTHON names a python that has it.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
set -- $(ls docs/measurements/*.jsonl | grep -v -e '/verify-' -e '/encode-' -e '/gguf-' -e '/channels-')
if [ $# -gt 0 ]; then
    "$python" -c 'import matplotlib' || { echo "docs.sh: $python has no matplotlib" >&2; exit 4; }
    for image in lowering roofline profile towers embed fill stages job; do rm -f docs/$image-*.png; done
    "$python" tools/plot.py all "$@" --out docs
    for file in docs/measurements/channels-*.jsonl; do # an image of their own
        "$python" tools/plot.py lowering "$file" --dtype bf16 \
            -o "docs/lowering-$(basename "$file" .jsonl)-bf16.png"
    done
    for file in docs/measurements/*.trace; do
        [ ! -e "$file" ] || "$python" tools/plot.py job "$file" -o "docs/job-$(basename "$file" .trace).png"
    done
fi
"$python" tools/tables.py
