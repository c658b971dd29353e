#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs what README says in the root of another system, which debootstrap makes below build/deps. It needs root, a network and
# debootstrap (apt-get install debootstrap), and is skipped (exit code 77) without them.
# Usage: clean_root.sh demo [bookworm|trixie|noble]     tools/demo.sh, without a compiler's warning.
#                                                       The root is kept, with the packages that tools/deps.sh installs.
#        clean_root.sh readme [bookworm|trixie|noble]   README's first lines on an empty system, by hand: minutes. In CI
#                                                       tests/snippets.py runs them, with what is there.
# The environment's PIP_* and proxies are passed on, and the files that QV_ROOT_FILES names (a proxy's certificates).
set -eu
cd "$(dirname "$0")/.."
. tests/debian.sh
what=${1:?demo or readme} suite=${2:-trixie}
[ "$(id -u)" = 0 ] || skip "a root of $suite needs root"
command -v debootstrap > /dev/null || skip "a root of $suite needs debootstrap (apt-get install debootstrap)"
find_mirror "$suite"
# Mounts are in a separate name space: however this ends, they end with it, and no other process ever sees them.
if [ "${QV_OWN_MOUNTS:-}" != clean_root ]; then
    unshare --mount true || skip "a root of $suite needs private mounts, which this container forbids"
    QV_OWN_MOUNTS=clean_root exec unshare --mount sh "$0" "$@"
fi

mkdir -p build/deps
case $what in
demo) root=$PWD/build/deps/root-$suite ;;
*) root=$(mktemp -d "$PWD/build/deps/root-XXXXXX") && trap 'rm -rf --one-file-system "$root"' EXIT ;;
esac
if [ ! -e "$root/made" ]; then
    proxy=$(apt-config shell proxy Acquire::http::Proxy)
    eval "$proxy"
    [ -z "${proxy:-}" ] || export http_proxy="$proxy"
    components=main script=
    if [ "$suite" = noble ]; then # Debian 12's debootstrap does not know noble, so it is made like jammy
        components=main,universe script=/usr/share/debootstrap/scripts/jammy
    fi
    rm -rf --one-file-system "$root"
    debootstrap --variant=minbase --components=$components --keyring="$keyring" "$suite" "$root" "$mirror" $script > "$root.log" 2>&1 ||
        { tail "$root.log"; exit 4; }
    rm "$root.log"
    { apt-config dump | grep '^Acquire::' || true; echo 'Dpkg::Use-Pty "0";'; } > "$root/etc/apt/apt.conf.d/50acquire"
    echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/unsafe-io" # nothing is lost with a root that is made again
    : > "$root/made"
fi
mount -t proc none "$root/proc"
for file in /etc/resolv.conf ${QV_ROOT_FILES:-}; do
    mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"
done
rm -rf --one-file-system "$root/qwenvit" && mkdir "$root/qwenvit"
git ls-files -z | xargs -0 tar -c | tar -x -C "$root/qwenvit"
{
    echo set -e
    env | sed -nE "s/^((PIP_[A-Z_]*|[a-z]*_proxy)=)(.*)/export \1'\3'/p"
    echo cd /qwenvit
    case $what in
    demo) cat << 'END' ;;
began=$(date +%s)
sh tools/deps.sh
echo "tools/deps.sh: $(($(date +%s) - began)) s"
sh tools/demo.sh
echo "tools/demo.sh: $(($(date +%s) - began)) s"
if grep -n 'warning:' build/demo.log; then exit 1; fi
END
    *) python3 tests/snippets.py --show README.md
        cat << 'END' ;;
cd /tmp
qwenvit --version
qwenvit synth --clip clip.mp4
qwenvit synth --config /qwenvit/tests/golden/qwen3_vl -o model
qwenvit encode clip.mp4 --model model -o clip.safetensors
python -c 'import numpy, qwenvit; print(qwenvit.load("model").encode("clip.mp4").tokens.shape)'
END
    esac
} > "$root/lines.sh"
env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" sh /lines.sh
echo "$suite: $what works"
