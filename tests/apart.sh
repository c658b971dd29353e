#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that every source compiles when each library that qwenvit is built on is in a separate folder, as
# with some package managers, and compilers find none of them by default. So every target that
# includes a header must get its folder. Nothing is linked and no code is generated: only syntax is checked.
# Usage: apart.sh SOURCE WORK COMPILER [cmake's options]
set -eu
source=$1 work=$2 cc=$3
shift 3
fail() { echo "FAILED: $*"; exit 1; }
rm -rf "$work" && mkdir -p "$work/system" && cd "$work"

# take NAME HEADER... makes links to these headers of the system in NAME/include
take() {
    name=$1; shift
    mkdir -p "$name/include" "$name/lib/pkgconfig"
    for header in "$@"; do
        found=/usr/include/$header
        [ -e "$found" ] || found=/usr/include/$multiarch/$header
        [ -e "$found" ] || fail "there is no $header below /usr/include"
        ln -s "$found" "$name/include/"
        taken="$taken $header"
    done
}
# module NAME MODULE writes a .pc file which says that the module is in NAME
module() {
    ldflags=$(pkg-config --libs "$2")
    printf 'Name: %s\nDescription: %s\nVersion: %s\nCflags: -I%s\nLibs: %s\n' "$2" "$2" \
        "$(pkg-config --modversion "$2")" "$PWD/$1/include" "$ldflags" > "$1/lib/pkgconfig/$2.pc"
}
taken=
multiarch=$($cc -print-multiarch)
take jansson jansson.h jansson_config.h
take xxhash xxhash.h
take cmocka cmocka.h
take seccomp seccomp.h seccomp-syscalls.h
take jpeg jpeglib.h jconfig.h jmorecfg.h jerror.h
for name in avcodec avformat avutil swscale; do
    take "$name" "lib$name"
    module "$name" "lib$name"
done
module jansson jansson
module cmocka cmocka
module seccomp libseccomp
module jpeg libjpeg
if pkg-config --exists openblas; then # needed on Arm, and optional elsewhere
    take openblas cblas.h openblas_config.h
    module openblas openblas
    set -- -DQV_BLAS=ON "$@"
fi

# the remaining headers of the system, and a compiler that knows only these
for folder in /usr/include "/usr/include/$multiarch"; do
    mkdir -p "system$folder"
    for header in "$folder"/*; do
        name=${header##*/}
        case " $taken $multiarch " in *" $name "*) continue ;; esac
        ln -s "$header" "system$folder/"
    done
done
own=$($cc -print-file-name=include)
cat > cc <<END
#!/bin/sh
# Without APART this compiles as usual. With it, it checks only the syntax, and makes empty output files.
[ -n "\${APART:-}" ] || exec $cc "\$@"
compile= out= last=
for word; do
    [ "\$word" != -c ] || compile=1
    [ "\$last" != -o ] || out=\$word
    last=\$word
done
[ -z "\$compile" ] || $cc -nostdinc -isystem "$own" -isystem "$PWD/system/usr/include" \\
    -isystem "$PWD/system/usr/include/$multiarch" -fsyntax-only "\$@" || exit
[ -z "\$out" ] || : > "\$out"
[ -n "\$compile" ] || [ -z "\$out" ] || chmod +x "\$out" # a program is run for its completion
END
chmod +x cc

paths=$(printf '%s;' "$PWD"/*/lib/pkgconfig)
export PKG_CONFIG_LIBDIR="$(printf '%s' "$paths" | tr ';' ':')"
cmake -S "$source" -B build -G Ninja -DCMAKE_C_COMPILER="$PWD/cc" -DCMAKE_C_COMPILER_LAUNCHER= \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH="$PWD/xxhash" "$@" > build.log 2>&1 ||
    { cat build.log; fail 'cmake'; }
APART=1 ninja -C build -k 0 > build.log 2>&1 || {
    grep -E '^FAILED|error' build.log
    fail 'the sources above include headers whose folders they were not given'
}
grep -c 'Building C object' build.log
rm -rf "$work"
