#!/usr/bin/env bash
# Counts the instructions of one scrape of a fixed page of four engines (220 KB) with callgrind, net of the start.
# Unlike time, the count hardly depends on the machine and not at all on who else uses it.
#
# The ceiling is the count at its last change and 15 % more: room for another compiler and for a feature that is worth
# it. To move it, run this, look at what the new instructions are for (`valgrind --tool=callgrind`, then
# `callgrind_annotate`), and write the new count times 1.15 below. A build without AVX2 counts more.
set -euo pipefail
cd "$(dirname "$0")/.."

ceiling=2800000

command -v valgrind >/dev/null || { echo "tests/instructions.sh: valgrind is missing: apt-get install valgrind" >&2; exit 1; }

build=$(cargo bench --locked --bench instructions --no-run 2>&1) || { echo "$build" >&2; exit 1; }
program=$(sed -n 's/^ *Executable benches\/instructions.rs (\(.*\))$/\1/p' <<<"$build")

# instructions TIMES: of a run that does the work so often.
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

few=$(instructions 5)
many=$(instructions 25)
each=$(((many - few) / 20))
echo "$each instructions a scrape, at most $ceiling"
[ "$each" -le "$ceiling" ] || { echo "tests/instructions.sh: the pipeline takes more instructions than it may; see the head of this script" >&2; exit 1; }
