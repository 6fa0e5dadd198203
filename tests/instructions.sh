#!/usr/bin/env bash
# Counts the instructions of one scrape of a fixed page of four engines (220 KB) with callgrind, net of the start: of the
# first page of a server, and of the next one. Unlike time, the count hardly depends on the machine and not at all on who
# else uses it.
#
# A ceiling is the count at its last change and 15 % more: room for another compiler and for a feature that is worth
# it. To move it, run this, look at what the new instructions are for (`valgrind --tool=callgrind`, then
# `callgrind_annotate`), and write the new count times 1.15 below. A build without AVX2 counts more.
set -euo pipefail
cd "$(dirname "$0")/.."

first_ceiling=2800000
next_ceiling=1460000

command -v valgrind >/dev/null || { echo "tests/instructions.sh: valgrind is missing: apt-get install valgrind" >&2; exit 1; }

build=$(cargo bench --locked --bench instructions --no-run 2>&1) || { echo "$build" >&2; exit 1; }
program=$(sed -n 's/^ *Executable benches\/instructions.rs (\(.*\))$/\1/p' <<<"$build")

# instructions FIRST NEXT: of a run that does the work of a first page and of a next one so often.
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# check WHAT COUNT CEILING
check() {
    echo "$1: $2 instructions a scrape, at most $3"
    [ "$2" -le "$3" ] || { echo "tests/instructions.sh: $1: the pipeline takes more instructions than it may; see the head of this script" >&2; exit 1; }
}

start=$(instructions 5 5)
check "first page" $((($(instructions 25 5) - start) / 20)) "$first_ceiling"
check "next page" $((($(instructions 5 25) - start) / 20)) "$next_ceiling"
