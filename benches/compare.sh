#!/usr/bin/env bash
# One table: whole scrapes through the real program beside what people would use instead, and what it costs its box.
# Run as root on Debian or Ubuntu it first installs the others; without them it compares with what is there, and says
# what is not. Everything listens on loopback and ends with it. With --quick it takes two minutes instead of twelve; the
# figures of a machine that does something else meanwhile are worth little either way.
set -euo pipefail
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }

# Installs Debian packages without starting the services in them.
apt_install() {
    local policy=/usr/sbin/policy-rc.d made=
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        made=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        echo "compare.sh: cannot install $*" >&2
    [ -z "$made" ] || rm -f "$policy"
}

if have apt-get && [ "$(id -u)" = 0 ]; then
    have wrk && have nginx && have prometheus-exporter-exporter ||
        { apt-get update -qq && apt_install wrk nginx-light prometheus-exporter-exporter; }
fi

cargo bench --locked --bench compare --bench cost --no-run

echo
echo "$(date -u +%Y-%m-%d), $(nproc) CPUs, $(. /etc/os-release && echo "$PRETTY_NAME"), $(rustc --version | cut -d' ' -f1,2), load $(cut -d' ' -f1 /proc/loadavg)"
status=0
cargo bench --quiet --locked --bench compare -- "$@" || status=$?
cargo bench --quiet --locked --bench cost -- "$@" || status=$?
exit "$status"
