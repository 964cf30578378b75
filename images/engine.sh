#!/usr/bin/env bash
# Make sure that a Docker Engine answers, with buildx and Compose v2: `make engine`.
#
# On Debian it installs what is missing from Debian's own packages and starts the engine; anywhere else it says what to
# install. An engine that answers is used as it is. Called by `make test-tools`; may be called again at any time.
set -euo pipefail

readonly plugins=/usr/local/lib/docker/cli-plugins # docker looks there whoever calls it
readonly log=/var/log/slipway-dockerd.log

say() { echo "engine: $*" >&2; }
fail() { say "$@"; exit 78; }

engine_answers() { timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
has_buildx() { docker buildx version >/dev/null 2>&1; }
has_compose() { docker compose version >/dev/null 2>&1; }

# shellcheck source=images/debian.sh
source "$(dirname "$0")/debian.sh"

# From Debian 13 on the client and the plugins are packages of their own.
packaged() { apt-cache show "$1" >/dev/null 2>&1; }

# Debian 12 has neither plugin; Debian 13's are static programs that run on it.
unpack_plugins() {
    say "unpacking Debian 13's docker-buildx and docker-compose into $plugins"
    local work
    work=$(mktemp --directory)
    # shellcheck disable=SC2064  # the folder's name is known now
    trap "rm --recursive --force '$work'" EXIT
    "$(dirname "$0")/trixie.sh" "$work" docker-buildx docker-compose
    as_root install -D --target-directory="$plugins" "$work"/usr/libexec/docker/cli-plugins/docker-{buildx,compose}
}

# With systemd the package has started it (or it is started here); without, it is started by hand.
start_engine() {
    local seconds pid="" journal
    if [[ -d /run/systemd/system ]]; then
        as_root systemctl start docker
        journal="journalctl --unit=docker"
    else
        say "starting dockerd (its log: $log)"
        pid=$(as_root bash -c "setsid dockerd >>$log 2>&1 </dev/null & echo \$!")
        journal="$log"
    fi
    for ((seconds = 0; seconds < 60; seconds++)); do
        if engine_answers; then return; fi
        [[ -z "${pid:-}" || -d "/proc/$pid" ]] || break
        sleep 1
    done
    fail "dockerd does not run; why, says $journal. Its end:" \
        "$(tail --lines=3 "$log" 2>/dev/null || echo "(see the journal)")"
}

said=$(docker version 2>&1 || true)
if [[ "$said" == *'permission denied'* ]]; then
    fail "the Docker Engine runs, but $(id -un) may not use it. Type: sudo usermod --append --groups docker $(id -un)" \
        "and log in again"
fi
if ! engine_answers && ! command -v dockerd >/dev/null; then
    on_debian || fail "no Docker Engine answers. Install Docker Engine 20.10 or newer with the buildx and compose" \
        "plugins (https://docs.docker.com/engine/install), start it, and see that 'docker version' shows a server."
    install_packages docker.io iptables
fi
if ! command -v docker >/dev/null; then install_packages docker-cli; fi
engine_answers || start_engine
if ! has_buildx || ! has_compose; then
    on_debian || fail "'docker buildx' or 'docker compose' (v2) is missing. Install Docker's buildx and compose plugins."
    if packaged docker-buildx; then install_packages docker-buildx docker-compose; else unpack_plugins; fi
fi
say "Docker $(docker version --format '{{.Server.Version}}'), $(docker buildx version | awk '{print "buildx", $2}')," \
    "Compose $(docker compose version --short)"
