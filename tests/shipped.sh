#!/bin/sh
# SPDX-License-Identifier: MIT
# What is shipped names no folder of the machine that built it: such a folder may be anybody's elsewhere,
# and so would be what is opened from there.
# Usage: shipped.sh FOLDER|WHEEL PATH...: exit 1 if a file of it has one of the paths in it, anywhere.
set -eu
shipped=$1
shift
case $shipped in
*.whl)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    python3 -m zipfile -e "$shipped" "$work"
    shipped=$work
    ;;
esac
[ -n "$(find "$shipped" -type f -size +0)" ] || { echo "shipped.sh: there is nothing in $shipped"; exit 1; }
bad=0
for path in "$@"; do
    ! grep -rlF -e "$path" "$shipped" || { echo "the files above name $path"; bad=1; }
done
exit $bad
