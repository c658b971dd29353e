#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that what media/options.inc lists stands nowhere else: the name of an entry may stand in the list, in the
# public headers, and in the files of the table below, each of which has its reason. A plain word (fps) counts
# only between quotes, and not if much else is called by it. Comments and Python's docstrings do not count.
# The list and the struct in the header must have the same members.
# lists.sh --selftest tests that a breach is found.
set -eu
cd "$(dirname "$0")/.."

# A list, a file that may name its entries, and why. Another list is checked once it has lines here.
table='
media/options.inc media/choose.c            decides which frames are read, and at which size
media/options.inc media/qwen_vl_utils.c     does so by the rules of qwen-vl-utils
media/options.inc media/sampling.c          does so by the rules of transformers
media/options.inc media/clip.c              keeps the index of a file of which a piece is read
media/options.inc media/frame_reader.c      reads the first frame
media/options.inc media/decoder_process.c   limits the process that decodes
media/options.inc media/codec.c             FFmpeg has a max_pixels too
media/options.inc media/source.c            so has its parser of images
media/options.inc media/option_list.h       a rate replaces a number of frames
media/options.inc media/clip_options.c      checks which options go together
media/options.inc cache/made_by.c           writes the numbers of the model, which are called so too
media/options.inc cache/resolve.c           knows the numbers of qwen-vl-utils
media/options.inc tools/command/encode.c    refuses, in flags, options that do not go together
media/options.inc tools/command/cache_command.c  refuses, in flags, options that do not go together
media/options.inc tools/command/info.c      prints the numbers of the model, and where a piece begins
media/options.inc tools/bench/job.c         makes frames small
media/options.inc tools/verify/verify.c     makes pixels of a size; samples as many frames as a grid has
media/options.inc python/src/model.cpp      gives the numbers of the model
media/options.inc python/src/frames.cpp     resizes frames that are in memory
media/options.inc python/qwenvit/ray.py      a rate replaces a number of frames
media/options.inc python/qwenvit/_sources.py    says what frames in memory may have
'
# words that other things are called by
common='start start_s end end_s offset length threads like decode gpu'

names() { # of the list $1: members and names
    sed -n 's/^QV_[A-Z_]*(\([a-z_]*\), "\([a-z_]*\)".*/\1 \2/p' "$1" | tr ' ' '\n' | sort -u | grep -vxF "$(echo "$common" | tr ' ' '\n')"
}

sources() {
    ls media/*.[ch] job/*.[ch] cache/*.[ch] tools/command/*.[ch] tools/bench/*.[ch] tools/verify/*.[ch] \
        python/src/*.cpp python/src/*.h python/qwenvit/*.py
}

# uses: prints "FILE:LINE: NAME" for each file of the arguments; the names are in $names
uses() {
    awk -v names="$names" '
        BEGIN { n = split(names, all, " ") }
        FNR == 1 { inside = 0 }
        {
            line = $0
            if (FILENAME ~ /\.py$/) {
                sub(/#.*/, "", line)
                quotes = gsub(/"""/, "", line)
                if (quotes == 1) inside = !inside
                if (inside || quotes) next
            }
            else {
                if (inside) { if (!sub(/^.*\*\//, "", line)) next; inside = 0 }
                gsub(/\/\*([^*]|\*[^\/])*\*\//, " ", line)
                if (sub(/\/\*.*/, "", line)) inside = 1
            }
            for (i = 1; i <= n; i++) {
                name = all[i]
                if (name ~ /_/ ? line ~ ("(^|[^A-Za-z0-9_])" name "($|[^A-Za-z0-9_])") : index(line, "\"" name "\""))
                    print FILENAME ":" FNR ": " name
            }
        }' "$@"
}

# breaches LIST: prints the uses on standard input that the table does not allow
breaches() {
    awk -v list="$1" -v table="$table" '
        BEGIN {
            n = split(table, lines, "\n")
            for (i = 1; i <= n; i++) { split(lines[i], w, " "); if (w[1] == list) allowed[w[2]] = 1 }
        }
        { file = $1; sub(/:.*/, "", file) }
        !(file in allowed) { print $0 " stands here; go through " list ", or give the file a reason"; bad = 1 }
        END { exit bad }'
}

# members STRUCT: prints the members of a struct of include/qwenvit_media.h
members() {
    sed -n "1,/^} $1;/p" include/qwenvit_media.h | tac | sed '/^typedef struct/q' | tac | sed '1d;$d' | tr '\n' ' ' |
        sed 's,/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/,,g' | tr ';' '\n' |
        sed 's/^ *\(const \)\{0,1\}[a-z_0-9]* \**//; s/\[.*//; /^ *$/d' | tr -d ' ' | tr , '\n' | sort
}

# agree MEMBERS: whether these are the list's and those that belong to the caller
agree() {
    listed=$(sed -n 's/^QV_CLIP_OPTION(\([a-z_]*\),.*/\1/p' media/options.inc)
    [ "$1" = "$(printf '%s\n' $listed bytes decoder n_bytes reserved | sort)" ]
}

if [ "${1:-}" = --selftest ]; then
    names=$(names media/options.inc | tr '\n' ' ')
    dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
    for line in 'o->max_pixels = 1;' 'f(&o, "fps");' '/* a comment */ x = o.first_frame;'; do
        echo "$line" > "$dir/x.c"
        ! uses "$dir/x.c" | breaches media/options.inc > /dev/null || { echo "not seen: $line"; exit 1; }
    done
    printf '/* max_pixels\n * "fps" */ int fps;\n' > "$dir/x.c"
    printf '"""Says\nmax_pixels."""\n# fps\nx = 1\n' > "$dir/x.py"
    uses "$dir/x.c" "$dir/x.py" | breaches media/options.inc
    ! agree "$(members qv_clip_options | grep -v max_pixels)" || { echo 'a lost member is not seen'; exit 1; }
    exit 0
fi
bad=0
for list in $(echo "$table" | awk 'NF { print $1 }' | sort -u); do
    names=$(names "$list" | tr '\n' ' ')
    uses $(sources) | breaches "$list" || bad=1
done
agree "$(members qv_clip_options)" ||
    { echo 'media/options.inc and qv_clip_options in include/qwenvit_media.h have different members'; bad=1; }
exit $bad
