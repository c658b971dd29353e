#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests tools/mac.sh: in the emulator, with a few small cases; and that it exits early, with the reason, on unsuitable
# machines, simulated by stand-ins for uname, sw_vers, sysctl and nvidia-smi. Usage: kit.sh SOURCE BUILD WORK
set -eu
kit=$1/tools/mac.sh build=$2 work=$3
rm -rf "$work" && mkdir -p "$work/bin" && cd "$work"

# plays NAME 'SHELL': a program of that name
plays() { printf '#!/bin/sh\n%s\n' "$2" > "bin/$1" && chmod +x "bin/$1"; }
# refused WORDS: the kit exits with code 4 and an error that contains WORDS
refused() {
    status=0
    PATH=$PWD/bin:$PATH sh "$kit" > refused 2>&1 || status=$?
    [ "$status" = 4 ] && grep -qF "$1" refused || { echo "FAILED: exit code $status, wanted \"$1\":"; cat refused; exit 1; }
}
plays uname '[ "$1" = -m ] && echo x86_64 || echo Darwin'
plays sysctl 'echo 0'
refused 'has an Intel processor'
plays sysctl 'echo 1'
refused 'arch -arm64 sh tools/mac.sh'
plays sysctl 'exit 1'
plays uname '[ "$1" = -m ] && echo arm64 || echo Darwin'
plays sw_vers 'echo 13.6.1'
refused 'this is macOS 13.6.1'
plays sw_vers 'echo 15.5'
plays pkg-config '[ "$2" != libjpeg ]'
refused 'missing: libjpeg; run: brew bundle --file=tools/Brewfile'
plays pkg-config :
plays xcrun 'exit 1'
refused 'xcode-select --install'
# the build does not fail on a newer compiler's warnings
plays xcrun :
plays cmake 'echo "cmake $*"; exit 1'
! PATH=$PWD/bin:$PATH sh "$kit" > refused 2>&1
grep -qx 'cmake --preset metal -DQV_WERROR=OFF' "$1/build/kit/qwenvit-metal.txt"
rm "$1"/build/kit/qwenvit-metal.* bin/cmake
plays uname 'echo Linux'
plays nvidia-smi 'echo 7.5'
refused 'compute capability 7.5'

sh "$kit" --small "$build" "$work/out" > log 2>&1 || { cat log out/*.txt; exit 1; }
python3 - out/qwenvit-metal.json << 'END'
import json
import sys

kit = json.load(open(sys.argv[1]))
assert kit["small"] is True and kit["backend"] == "metal" and "qwenvit" in kit["version"], kit
names = [step["step"] for step in kit["steps"]]
assert names == ["device", "checkop", "checkconv", "verify", "tower"], names
assert all(step["result"] == "passed" for step in kit["steps"]), kit["steps"]
assert {"tower"} <= {record.get("bench") for record in kit["records"]}, kit["records"]
assert any("verify" in record for record in kit["records"]), kit["records"]
END
grep -q '^== tower: passed' out/qwenvit-metal.txt
# a step that fails is named in both files, and in the exit code
mkdir -p broken/tests
for name in qwenvit tests/checkop; do
    printf '#!/bin/sh\necho "it is \\"broken\\""; exit 3\n' > broken/$name && chmod +x broken/$name
done
printf '#!/bin/sh\nkill -9 $$\n' > broken/tests/checkconv && chmod +x broken/tests/checkconv
status=0
sh "$kit" --small "$work/broken" "$work/out2" > log 2>&1 || status=$?
[ "$status" = 1 ] && python3 -c 'import json; print(json.load(open("out2/qwenvit-metal.json"))["steps"])' > steps
grep -q "'checkop', 'result': 'failed, exit code 3'" steps && grep -q "'checkconv', 'result': 'failed, exit code 137'" steps
