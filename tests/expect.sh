# SPDX-License-Identifier: MIT
# Shared by the tests of the command. They include it (.) before they change to their
# folder.
n=0 # how many commands were run

fail() { echo "FAILED: $*"; cat out.txt err.txt; exit 1; }
# expect CODE WORDS COMMAND...: runs it, checks the exit code and that its output contains WORDS
expect() {
    code=$1 words=$2; shift 2
    n=$((n + 1)) got=0
    "$@" > out.txt 2> err.txt < /dev/null || got=$?
    [ "$got" = "$code" ] || fail "exit $got, not $code: $*"
    [ -z "$words" ] || cat out.txt err.txt | grep -qF -- "$words" || fail "no \"$words\": $*"
}
