#!/usr/bin/env bash
# Make sure that Debian's Chromium is here: a test looks at TensorBoard in it. Called by `make test-compose`.
#
# Where it cannot be installed this says so and goes on: that one test is skipped then, which in CI is a failure.
set -euo pipefail

readonly packages=(chromium fonts-dejavu-core) # no font is among what Chromium depends on

say() { echo "browser: $*" >&2; }
skip() { say "$@"; exit 0; }

[[ ! -x /usr/bin/chromium ]] || exit 0
grep --quiet '^ID=debian' /etc/os-release || skip "there is no /usr/bin/chromium, and this is no Debian"
root=()
if ((EUID != 0)); then
    sudo -n true 2>/dev/null || skip "Chromium is missing. Type: sudo apt-get install ${packages[*]}"
    root=(sudo -n)
fi
[[ -n "${CI:-}" ]] || say "installing from Debian's packages: ${packages[*]}"
"${root[@]}" apt-get update --quiet --quiet || skip "Debian's packages cannot be listed"
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends \
    -o Dpkg::Use-Pty=0 "${packages[@]}" >/dev/null || skip "Chromium could not be installed"
