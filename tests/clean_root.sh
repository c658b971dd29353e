#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs README's first lines as they stand on an empty system, a root that debootstrap makes. Run it by hand, as root
# and with a network; it takes some minutes. In CI, tests/snippets.py runs the same lines with what is there.
# Usage: sh tests/clean_root.sh [bookworm|trixie|noble]
# PIP_* and proxies of the environment are handed on, and the files that QV_ROOT_FILES names (certificates of a proxy).
set -eu
suite=${1:-bookworm} mirror=http://deb.debian.org/debian components=main script=
cd "$(dirname "$0")/.."
if [ "$suite" = noble ]; then # Debian 12's debootstrap does not know noble, so it is made like jammy
    mirror=http://archive.ubuntu.com/ubuntu components=main,universe
    script=/usr/share/debootstrap/scripts/jammy
fi
[ "$(id -u)" = 0 ] && command -v debootstrap > /dev/null || {
    echo 'clean_root.sh: it wants root and debootstrap (apt-get install debootstrap)' >&2
    exit 4
}
work=$(mktemp -d)
root=$work/root
trap 'umount "$root/proc" 2> /dev/null || true; rm -rf --one-file-system "$work"' EXIT
debootstrap --variant=minbase --components=$components "$suite" "$root" "$mirror" $script > "$work/log" 2>&1 ||
    { tail "$work/log"; exit 4; }
mount -t proc none "$root/proc"
for file in /etc/resolv.conf ${QV_ROOT_FILES:-}; do
    mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"
done
mkdir "$root/qwenvit"
git ls-files -z | xargs -0 tar -c | tar -x -C "$root/qwenvit"
{
    echo set -e
    env | sed -nE "s/^((PIP_[A-Z_]*|[a-z]*_proxy)=)(.*)/export \1'\3'/p"
    echo cd /qwenvit
    python3 tests/snippets.py --show README.md
    cat << 'END'
cd /tmp
qwenvit --version
qwenvit synth --clip clip.mp4
qwenvit synth --config /qwenvit/tests/golden/qwen3_vl -o model
qwenvit encode clip.mp4 --model model -o clip.safetensors
python -c 'import numpy, qwenvit; print(qwenvit.load("model").encode("clip.mp4").tokens.shape)'
END
} > "$root/lines.sh"
env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" sh /lines.sh
echo "$suite: README's first lines install qwenvit, and it works"
