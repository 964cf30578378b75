#!/usr/bin/env bash
# Make sure that there is a kubectl whose kustomize knows components and replacements. Called by `make test-k8s`.
#
# Where there is none, or an old one, Debian 13's is unpacked into .venv. Where that cannot be had this says so and goes on;
# the tests are skipped then, which in CI is a failure.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly unpacked=.venv/kubectl

say() { echo "k8s: $*" >&2; }
skip() { say "$@"; exit 0; }

# As tests/k8s/kubectl.py has it; kubectl 1.27 was the first with kustomize 5.
new_enough() {
    "$1" version --client --output=yaml 2>/dev/null | grep --quiet --extended-regexp '^kustomizeVersion: v([5-9]|[1-9][0-9])\.'
}

if new_enough kubectl || new_enough $unpacked/usr/bin/kubectl; then exit 0; fi
grep --quiet '^ID=debian' /etc/os-release ||
    skip "there is no kubectl 1.27 or newer. Install one: https://kubernetes.io/docs/tasks/tools"
[[ -n "${CI:-}" ]] || say "unpacking Debian 13's kubectl into $unpacked"
images/trixie.sh $unpacked kubectl || skip "Debian 13's kubectl could not be unpacked"
new_enough $unpacked/usr/bin/kubectl || skip "Debian 13's kubectl does not run here"
