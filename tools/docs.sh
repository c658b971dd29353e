#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes the pages of measurements, README's figures and the images in docs/ from the files in
# docs/measurements. The images need matplotlib; PYTHON names a python that has it.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
set -- $(ls docs/measurements/*.jsonl | grep -v -e '/verify-' -e '/encode-' -e '/earlier-' -e '/gguf-' -e '/channels-')
"$python" -c 'import matplotlib' || { echo "docs.sh: $python has no matplotlib" >&2; exit 4; }
for image in roofline profile towers embed fill stages rows job; do rm -f docs/$image-*.png; done
"$python" tools/plot.py all "$@" --out docs
for file in docs/measurements/*.trace; do
    [ ! -e "$file" ] || "$python" tools/plot.py job "$file" -o "docs/job-$(basename "$file" .trace).png"
done
"$python" tools/plot.py versions docs/measurements/earlier-*.jsonl docs/measurements/jobs-h200.jsonl -o docs/versions.png
"$python" tools/tables.py
