#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests that the entries of clips/options.inc and src/outcome.inc are listed nowhere else: an entry's name may occur in
# the list, in the public headers, and in the files of the table below, each for a reason. A plain word
# (fps) counts only between quotes, and not if much else is called by it. In C, members of an outcome may be used: its
# names count where they are text, in quotes or in a template of tool_show, and where a member is copied to a member of
# the same name. Comments and Python's docstrings do not count.
# The list of options and the struct in the header must have the same members (for outcomes the compiler sees to it).
set -eu
cd "$(dirname "$0")/.."

# A list, a file that may name its entries, and why.
table='
clips/options.inc clips/task.c              makes the task of a clip from them
clips/options.inc clips/task.h              declares the task of a clip
clips/options.inc clips/choose.c            decides which frames are read, and at which size
clips/options.inc clips/qwen_vl_utils.c     does so by the rules of qwen-vl-utils
clips/options.inc clips/sampling.c          does so by the rules of transformers
clips/options.inc clips/clip.c              keeps the index of a file that is read in part
clips/options.inc decoder/frame_reader.c      reads the first frame
clips/options.inc clips/decoder_process.c   limits the process that decodes
clips/options.inc decoder/codec.c             FFmpeg has a max_pixels too
clips/options.inc decoder/source.c            its parser of images has one too
clips/options.inc clips/option_list.h       a rate replaces a number of frames
clips/options.inc clips/clip_options.c      checks which options go together
clips/options.inc cache/resolve.c           knows the default values of qwen-vl-utils
clips/options.inc tools/command/info.c      prints the values of the model, and where a piece begins
clips/options.inc python/src/model.cpp      returns the values of the model
clips/options.inc python/src/frames.cpp     resizes frames in memory
clips/options.inc python/qwenvit/_options.py    types of the options, which a test compares with the binding
clips/options.inc python/qwenvit/_sources.py    lists the fields of frames in memory
clips/options.inc python/qwenvit/media.py       knows names of options in qwen-vl-utils
clips/options.inc python/qwenvit/_transformers.py calls smart_resize of transformers
src/outcome.inc job/add.c                 frames in memory come with their rate
src/outcome.inc cache/reader.c              returns the rate of an index row
src/outcome.inc cache/record.c              reads two fields of a record that older records lack
src/outcome.inc tools/command/info.c        prints them in sentences
src/outcome.inc tools/command/token_sink.c      prints them in sentences
src/outcome.inc tools/command/estimate.c    sums frames of a list of clips
src/outcome.inc tools/command/progress_line.c sums frames and times of the clips of a job
src/outcome.inc python/qwenvit/adapters/items.py describes damage
src/outcome.inc python/qwenvit/_cache.py    exposes fields of a record as properties, with their defaults
src/outcome.inc python/qwenvit/_tokens.py   exposes properties of Tokens, some of them None if unset
src/outcome.inc python/qwenvit/adapters/engines.py second_per_grid_ts is a field of processors
'
# words that other things are called by
common='start start_s end end_s offset length threads like decode gpu'
common_outcome='clip codec first_frame format frames grid_thw height image is_image kind like n_frames video width'

names() { # of the list $1: members and names
    case $1 in
        clips/options.inc) sed -n 's/^QV_[A-Z_]*(\([a-z_]*\), "\([a-z_]*\)".*/\1 \2/p' "$1" | tr ' ' '\n' ;;
        *) grep '^QV_OUTCOME(\|^           ' "$1" | grep -o '^QV_OUTCOME([a-z_]*\|"[a-z_]*"' | sed 's/.*(//; s/"//g' ;;
    esac | sort -u | grep -vxF "$(echo "$2" | tr ' ' '\n')"
}

sources() {
    ls clips/*.[ch] decoder/*.[ch] job/*.[ch] cache/*.[ch] tools/command/*.[ch] tools/bench/*.[ch] tools/verify/*.[ch] \
        python/src/*.cpp python/src/*.h python/qwenvit/*.py
}

# enter LIST: sets what uses() and breaches() look for
enter() {
    list=$1
    case $list in *outcome*) names=$(names "$list" "$common_outcome") ;; *) names=$(names "$list" "$common") ;; esac
}

# uses: prints "FILE:LINE: NAME" for each file of the arguments; the names are those of $list
uses() {
    awk -v names="$(echo $names)" -v texts="$([ "$list" != src/outcome.inc ] || echo 1)" '
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
                if (texts && FILENAME !~ /\.py$/) {
                    of = "(\\.|->)" name
                    if (line ~ ("[\"{[!]" name "[\"|}?]") || line ~ ("[\" .]" name ":[Iibfsto][ \"]") ||
                        line ~ (of " = .*" of "($|[^A-Za-z0-9_])"))
                        print FILENAME ":" FNR ": " name
                }
                else if (name ~ /_/ ? line ~ ("(^|[^A-Za-z0-9_])" name "($|[^A-Za-z0-9_])") : index(line, "\"" name "\""))
                    print FILENAME ":" FNR ": " name
            }
        }' "$@"
}

# breaches: prints the uses on standard input that the table does not allow
breaches() {
    awk -v list="$list" -v table="$table" '
        BEGIN {
            n = split(table, lines, "\n")
            for (i = 1; i <= n; i++) { split(lines[i], w, " "); if (w[1] == list) allowed[w[2]] = 1 }
        }
        { file = $1; sub(/:.*/, "", file) }
        !(file in allowed) { print $0 " occurs here; go through " list ", or give the file a reason"; bad = 1 }
        END { exit bad }'
}

# members STRUCT: prints the members of a struct of include/qwenvit_clips.h
members() {
    sed -n "1,/^} $1;/p" include/qwenvit_clips.h | tac | sed '/^typedef struct/q' | tac | sed '1d;$d' | tr '\n' ' ' |
        sed 's,/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/,,g' | tr ';' '\n' |
        sed 's/(\*\([a-z_]*\)).*/\1/; s/^ *\(const \)\{0,1\}[a-z_0-9]* \**//; s/\[.*//; /^ *$/d' | tr -d ' ' | tr , '\n' | sort
}

# agree MEMBERS: whether these are the list's and those that belong to the caller
agree() {
    listed=$(sed -n 's/^QV_CLIP_OPTION(\([a-z_]*\),.*/\1/p' clips/options.inc)
    [ "$1" = "$(printf '%s\n' $listed bytes decoder go_on n_bytes user | sort)" ]
}

bad=0
for list in clips/options.inc src/outcome.inc; do
    enter "$list"
    uses $(sources) | breaches || bad=1
done
agree "$(members qv_clip_options)" ||
    { echo 'clips/options.inc and qv_clip_options in include/qwenvit_clips.h have different members'; bad=1; }
# a reason that no file needs any more
for list in clips/options.inc src/outcome.inc; do
    enter "$list"
    echo "$table" | awk -v list="$list" '$1 == list { print $2 }' | while read -r file; do
        [ -n "$(uses "$file")" ] || { echo "$file needs no reason in the table of $list any more"; exit 1; }
    done || bad=1
done
exit $bad
