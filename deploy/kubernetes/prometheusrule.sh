#!/bin/sh
# Writes prometheusrule.yaml from alerts/, the one copy of the rules. Run it after a change there; the tests compare.
#   deploy/kubernetes/prometheusrule.sh > deploy/kubernetes/prometheusrule.yaml
set -eu
alerts=$(dirname "$0")/../../alerts

cat <<'HEAD'
# Written by prometheusrule.sh from alerts/kvtier.rules.yml and alerts/kvtier.alerts.yml. Change those, not this.
# The label is what your Prometheus selects rules by; many installations want `release: NAME` here.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: kvtier
  labels:
    app.kubernetes.io/name: kvtier-exporter
spec:
  groups:
HEAD
# The groups, two columns to the right; the head of each file stays behind.
for file in kvtier.rules.yml kvtier.alerts.yml; do
    sed '1,/^groups:$/d; s/^\(.\)/  \1/' "$alerts/$file"
done
