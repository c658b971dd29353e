#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that every link from a page to a file is valid, and that no page names a generator next to a preset,
# which sets the generator itself.
# Usage: links.sh ROOT
set -eu
cd "$1"
n=0 bad=0
for page in *.md docs/*.md python/*.md tools/*/*.md; do
    # takes ](target) without the part after #, and leaves out addresses
    for link in $(grep -o ']([^) ]*)' "$page" | sed 's/^](//; s/)$//; s/#.*//' | grep -v '^[a-z]*:' | sort -u); do
        n=$((n + 1))
        [ -e "$(dirname "$page")/$link" ] || { bad=$((bad + 1)); echo "$page: no $link"; }
    done
done
echo "$n links, $bad lead nowhere"
if grep -rnE -- '--preset.* -G|-G.* --preset' .ci tools docs python ./*.md; then
    bad=$((bad + 1))
fi
[ "$n" -gt 0 ] && [ "$bad" = 0 ]
