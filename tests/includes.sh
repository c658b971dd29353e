#!/bin/sh
# SPDX-License-Identifier: MIT
# Tests which files may include which headers: a room may include its own and those of the rooms below it.
set -eu
cd "$(dirname "$0")/.."

# A room, and the rooms (or single files) whose headers it may include. `src` stands for src/error.h and the like.
rules='
src            include
src/files      include src
src/engine     include src src/files
src/conv3d     include src src/engine
src/towers     include src src/files src/engine src/conv3d
src/model      include src src/engine src/conv3d src/towers
cpu            include src src/engine
cuda           include src src/engine
metal          include src src/engine
pixels         include src
ipc            include src
clips          include src src/files/installed.h ipc pixels
decoder        include src ipc pixels
job            include src src/files src/model/feeder.h cache/writer.h clips/decoders.h clips/option_list.h clips/task.h
cache          include src src/files clips/option_list.h
tools/command  include src src/files src/engine src/conv3d src/towers src/model cache/open.h cache/writer.h clips/decoders.h clips/make_clip.h clips/option_list.h clips/options.inc job/formats.h job/more.h
tools/bench    include src src/files src/engine src/conv3d src/towers src/model tools/command
python/src     include src/dtype.h src/error.h src/path.h src/image_kind.h src/outcome.inc src/files src/engine/block_order.h src/engine/frames.h src/engine/turns.h cache/open.h clips/decoders.h clips/option_list.h job/more.h
tools/verify   include src src/files src/engine src/conv3d src/towers src/model tools/command
'

# prints "FILE HEADER" lines: the headers of ours that a file includes, as paths from the top
includes() {
    for f in include/*.h src/*.[ch] src/*/*.[ch]* cpu/*.[ch] cuda/*.[ch]* metal/*.[chm]* ipc/*.[ch] pixels/*.[ch] clips/*.[ch] decoder/*.[ch] \
        job/*.[ch] cache/*.[ch] python/src/*.cpp python/src/*.h tools/*/*.[ch]; do
        sed -n 's/^#include "\([^"]*\)".*/\1/p' "$f" | while read -r h; do
            for at in "${f%/*}" src tools include job .; do
                [ ! -e "$at/$h" ] || { echo "$f ${at#.}/$h" | sed 's, /, ,'; break; }
            done
        done
    done
}

# breaches: prints the lines of standard input that no rule allows
breaches() {
    awk -v rules="$rules" '
        function room(path) { sub("/[^/]*$", "", path); return path }
        BEGIN {
            n = split(rules, lines, "\n")
            for (i = 1; i <= n; i++) {
                m = split(lines[i], words, " ")
                for (j = 1; j <= m; j++) { allowed[words[1] " " words[j]] = 1; rooms[words[1]] = 1 }
            }
        }
        { from = room($1); to = room($2) }
        from == to || allowed[from " " to] || allowed[from " " $2] { next }
        { print $1 ": may not include " $2 (from in rooms ? "" : ": no rule for room " from); bad = 1 }
        END { exit bad }'
}

includes > "${TMPDIR:-/tmp}/qwenvit-includes.$$"
trap 'rm -f "${TMPDIR:-/tmp}/qwenvit-includes.$$"' EXIT
breaches < "${TMPDIR:-/tmp}/qwenvit-includes.$$"
echo "$(wc -l < "${TMPDIR:-/tmp}/qwenvit-includes.$$") includes, none of them upwards"
