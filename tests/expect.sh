# SPDX-License-Identifier: MIT
# This is what the tests of the command share. They include it (.) before they change to their
# folder.
n=0 # how many commands were run

fail() { echo "FAILED: $*"; cat out.txt err.txt; exit 1; }
# expect CODE WORDS COMMAND...: runs it, checks the exit code and that its output says WORDS
expect() {
    code=$1 words=$2; shift 2
    n=$((n + 1)) got=0
    "$@" > out.txt 2> err.txt < /dev/null || got=$?
    [ "$got" = "$code" ] || fail "exit $got, not $code: $*"
    [ -z "$words" ] || cat out.txt err.txt | grep -qF -- "$words" || fail "no \"$words\": $*"
}
# is_rate RATE COUNT SECONDS: the last record in out.txt has these fields, and RATE is COUNT / SECONDS
is_rate() {
    tail -n 1 out.txt | awk -v rate="$1" -v count="$2" -v seconds="$3" '
        function field(name) {
            if (!match($0, "\"" name "\":[-+.0-9e]+")) exit 1
            return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
        }
        { per_s = field(count) / field(seconds)
          right = per_s > 0 && field(rate) > 0.999 * per_s && field(rate) < 1.001 * per_s }
        END { exit !right }' || fail "$1 is not $2 / $3"
}
