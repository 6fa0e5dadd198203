#!/usr/bin/env bash
# Lets the real programs judge alerts/ and deploy/: promtool, amtool, Alertmanager, kustomize, systemd-analyze, docker.
# A program that is not here is said ("not checked: …") and is no failure, unless REQUIRE names it:
#   REQUIRE="promtool amtool" tests/deploy/check.sh
# Nothing is downloaded and nothing outside loopback is talked to.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

passed=0 failed=0 unchecked=0
scratch=$(mktemp -d)
alertmanager_pid=
finish() {
    if [ -n "$alertmanager_pid" ]; then
        kill "$alertmanager_pid" 2>/dev/null
        wait "$alertmanager_pid" 2>/dev/null
    fi
    rm -rf "$scratch"
}
trap finish EXIT

# check NAME COMMAND…: runs it and shows what it said if it fails.
check() {
    local name=$1
    shift
    if "$@" >"$scratch/out" 2>&1; then
        echo "ok: $name"
        passed=$((passed + 1))
    else
        echo "FAILED: $name"
        sed 's/^/    /' "$scratch/out"
        failed=$((failed + 1))
    fi
}

not_checked() {
    echo "not checked: $2 ($1 is not here)"
    unchecked=$((unchecked + 1))
    case " ${REQUIRE:-} " in *" $1 "*)
        echo "FAILED: $1 is required"
        failed=$((failed + 1))
        ;;
    esac
}

# here PROGRAM WHAT: whether the program exists; says what stays unchecked if not.
here() { command -v "$1" >/dev/null || { not_checked "$1" "$2"; return 1; }; }

rules() {
    here promtool "rules and their tests, prometheus.yml" || return
    check "promtool accepts the rules" promtool check rules alerts/kvtier.rules.yml alerts/kvtier.alerts.yml
    check "promtool accepts prometheus.yml and finds its rules" promtool check config deploy/prometheus/prometheus.yml
    local file
    for file in tests/rules/*.yml; do
        check "promtool test rules $file" promtool test rules "$file"
    done
}

# routes_to RECEIVER LABEL=VALUE…
routes_to() {
    local receiver=$1
    shift
    amtool config routes test --config.file=deploy/alertmanager/alertmanager.yml --verify.receivers="$receiver" "$@"
}

routes() {
    here amtool "alertmanager.yml and its routes" || return
    check "amtool accepts alertmanager.yml" amtool check-config deploy/alertmanager/alertmanager.yml
    check "critical pages" routes_to pager alertname=KVTierGPUMemoryLow severity=critical
    check "warning goes to the chat" routes_to chat alertname=KVTierGPUMemoryLow severity=warning
    check "info goes to nobody" routes_to nobody alertname=KVTierGPUMemoryLow severity=info
    check "the watchdog goes to its switch" routes_to dead-man alertname=KVTierWatchdog severity=none
    check "what nobody thought of is shown" routes_to chat alertname=Other
}

# Alerts in that state, one a line, as the running Alertmanager sees it.
alerts_in() { # active|inhibited MATCHER…
    local state=$1
    shift
    amtool --alertmanager.url="$alertmanager" alert query "--$state" -o simple "$@" | tail -n +2
}

# It takes an alert in a moment after it was given one: ask until it is in that state, and in no other.
is() { # active|inhibited MATCHER…
    local wanted=$1 other=inhibited deadline=$((SECONDS + 15))
    shift
    [ "$wanted" = active ] || other=active
    until [ -n "$(alerts_in "$wanted" "$@")" ]; do
        [ "$SECONDS" -lt "$deadline" ] || { echo "not $wanted after 15 s, but $other: $(alerts_in $other "$@")"; return 1; }
        sleep 0.2
    done
    [ -z "$(alerts_in $other "$@")" ]
}

start_alertmanager() {
    local port=$((20000 + RANDOM % 20000)) deadline=$((SECONDS + 20))
    alertmanager=http://127.0.0.1:$port
    "$program" --config.file=deploy/alertmanager/alertmanager.yml --storage.path="$scratch/alertmanager" \
        --web.listen-address="127.0.0.1:$port" --cluster.listen-address= >"$scratch/alertmanager.log" 2>&1 &
    alertmanager_pid=$!
    until amtool --alertmanager.url="$alertmanager" alert query >/dev/null 2>&1; do
        kill -0 "$alertmanager_pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ] || { cat "$scratch/alertmanager.log"; return 1; }
        sleep 0.2
    done
}

inhibition() {
    local program
    program=$(command -v prometheus-alertmanager || command -v alertmanager) || { not_checked alertmanager "inhibition"; return; }
    here amtool "inhibition" || return
    check "Alertmanager starts with alertmanager.yml" start_alertmanager
    [ -n "$alertmanager_pid" ] && kill -0 "$alertmanager_pid" 2>/dev/null || return
    add() { amtool --alertmanager.url="$alertmanager" alert add job=kvtier "$@"; }
    # gpu-01 cannot be read; its neighbour can. spark-01 is silent. One GPU has all three severities.
    add alertname=KVTierUpstreamUnreadable upstream=main instance=gpu-01 severity=critical scope=exporter
    add alertname=KVTierStoresRefused instance=gpu-01 engine=0 severity=warning scope=engine
    add alertname=KVTierShmStaleFiles instance=gpu-01 severity=warning scope=host
    add alertname=KVTierStoresRefused instance=gpu-02 engine=0 severity=warning scope=engine
    add alertname=KVTierUpstreamUnreadable upstream=lmcache instance=gpu-03 severity=critical scope=exporter
    add alertname=KVTierStoresRefused instance=gpu-03 engine=0 severity=warning scope=engine
    # gpu-05 cannot read its engine nor a further source, and says two things; nobody is let in there.
    add alertname=KVTierUpstreamUnreadable upstream=main instance=gpu-05 severity=critical scope=exporter
    add alertname=KVTierUpstreamUnreadable upstream=lmcache instance=gpu-05 severity=warning scope=exporter
    add alertname=KVTierNotice id=identity-uncertain upstream=main instance=gpu-05 severity=warning scope=exporter
    add alertname=KVTierNotice id=gauge-not-corrected upstream=main instance=gpu-05 severity=info scope=exporter
    add alertname=KVTierRequestsNotAdmitted instance=gpu-06 engine=0 severity=warning scope=engine
    add alertname=KVTierQueueTimeHigh instance=gpu-06 engine=0 severity=warning scope=engine
    add alertname=KVTierQueueTimeHigh instance=gpu-06 engine=1 severity=warning scope=engine
    add alertname=KVTierUnifiedBoxSilent instance=spark-01 severity=critical scope=host
    add alertname=KVTierExporterDown instance=spark-01 severity=warning scope=exporter
    add alertname=KVTierGPUMemoryLow instance=gpu-04 gpu=0 severity=critical scope=host
    add alertname=KVTierGPUMemoryLow instance=gpu-04 gpu=0 severity=warning scope=host
    add alertname=KVTierGPUMemoryLow instance=gpu-04 gpu=1 severity=warning scope=host
    add alertname=KVTierGPUMemoryLow instance=gpu-04 gpu=1 severity=info scope=host
    # Of one name in two clusters; and an engine that can be read by turns.
    add alertname=KVTierExporterDown instance=gpu-09 cluster=a severity=warning scope=exporter
    add alertname=KVTierShmStaleFiles instance=gpu-09 cluster=a severity=warning scope=host
    add alertname=KVTierShmStaleFiles instance=gpu-09 cluster=b severity=warning scope=host
    add alertname=KVTierUpstreamUnreadable upstream=main instance=gpu-10 part="by turns" severity=warning scope=exporter
    add alertname=KVTierStoresRefused instance=gpu-10 engine=0 severity=warning scope=engine
    check "an unreadable engine mutes its other alerts" is inhibited alertname=KVTierStoresRefused instance=gpu-01
    check "a silent box mutes its exporter" is inhibited alertname=KVTierExporterDown instance=spark-01
    check "critical mutes warning" is inhibited instance=gpu-04 gpu=0 severity=warning
    check "warning mutes info" is inhibited instance=gpu-04 gpu=1 severity=info
    check "what may be the cause is not muted" is active alertname=KVTierShmStaleFiles instance=gpu-01
    check "a silent exporter mutes its box" is inhibited alertname=KVTierShmStaleFiles instance=gpu-09 cluster=a
    check "a box of that name in another cluster is not muted" is active alertname=KVTierShmStaleFiles instance=gpu-09 cluster=b
    check "a page that comes by turns mutes nothing" is active alertname=KVTierStoresRefused instance=gpu-10
    check "the neighbour is not muted" is active alertname=KVTierStoresRefused instance=gpu-02
    check "a second source mutes no engine" is active alertname=KVTierStoresRefused instance=gpu-03
    check "critical of one GPU leaves the other one's warning" is active instance=gpu-04 gpu=1 severity=warning
    check "an unreadable engine leaves a further source its warning" is active alertname=KVTierUpstreamUnreadable instance=gpu-05 upstream=lmcache
    check "one notice leaves another one alone" is active alertname=KVTierNotice id=gauge-not-corrected
    check "a queue that nobody leaves is told once" is inhibited alertname=KVTierQueueTimeHigh instance=gpu-06 engine=0
    check "another engine's queue is told" is active alertname=KVTierQueueTimeHigh instance=gpu-06 engine=1
    check "nothing mutes a critical alert of another name" is active alertname=KVTierUnifiedBoxSilent
    # Without a job: it is of no target.
    amtool --alertmanager.url="$alertmanager" alert add alertname=KVTierExporterMissing severity=critical scope=exporter
    add alertname=KVTierExporterDown instance=gpu-07 severity=warning scope=exporter
    check "no exporter at all mutes the single ones" is inhibited alertname=KVTierExporterDown instance=gpu-07
}

kubernetes() {
    check "prometheusrule.yaml is what prometheusrule.sh writes" \
        diff deploy/kubernetes/prometheusrule.yaml <(deploy/kubernetes/prometheusrule.sh)
    here kubectl "kustomize of alerts/, dashboards/ and deploy/kubernetes/" || return
    check "kustomize builds alerts/" kubectl kustomize alerts
    if ! compgen -G 'dashboards/*.json' >/dev/null; then
        not_checked "dashboards/*.json" "kustomize of dashboards/ and deploy/kubernetes/"
        return
    fi
    check "kustomize builds dashboards/" kubectl kustomize dashboards
    check "kustomize builds deploy/kubernetes/" kubectl kustomize deploy/kubernetes
}

# The unit with a program that is here: verify wants to find it. Its messages on units of this box are not ours.
unit() {
    here systemd-analyze "the systemd unit" || return
    sed 's#^ExecStart=.*#ExecStart=/bin/true#' deploy/systemd/kvtier-exporter.service >"$scratch/kvtier-exporter.service"
    verify() {
        systemd-analyze verify --man=no "$scratch/kvtier-exporter.service" 2>&1 | grep -F kvtier-exporter | tee "$scratch/said"
        [ ! -s "$scratch/said" ]
    }
    check "systemd-analyze has nothing against the unit" verify
    check "systemd-analyze finds the box closed (exposure 3.0 at most)" \
        systemd-analyze security --offline=yes --threshold=30 "$scratch/kvtier-exporter.service"
}

compose() {
    if ! docker compose version >/dev/null 2>&1; then
        not_checked "docker-compose" "compose.yml beyond its being YAML"
        return
    fi
    check "docker compose accepts compose.yml" env VLLM_MODEL=m GRAFANA_PASSWORD=p \
        docker compose -f deploy/compose/compose.yml config --quiet
}

rules
routes
inhibition
kubernetes
unit
compose
echo "not checked: building the image and starting containers or pods (no container engine is asked for)"
echo "$passed passed, $failed failed, $unchecked skipped"
[ "$failed" -eq 0 ]
