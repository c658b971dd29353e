#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that shipped files name no folder of the machine that built them. On another machine anyone may own a
# folder of that name, and plant files there that would be opened.
# Usage: shipped.sh FOLDER|WHEEL PATH...: exits with 1 if a file of it contains one of the paths anywhere.
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
