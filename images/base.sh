#!/usr/bin/env bash
# Build the image's base, Debian 13 (trixie), from Debian packages where no image registry answers: `make base`.
#
# The same content as debian:trixie-slim: the minimal set of packages without documentation and translations. The
# licences (…/copyright) stay. Needs mmdebstrap, which it installs on Debian. `images/base.sh TAG SUITE PACKAGE,…` makes another one, and
# ARCHITECTURE=arm64 one for another architecture than this machine's, for which mmdebstrap needs arch-test and QEMU.
set -euo pipefail

readonly tag="${1:-slipway-base:trixie}" suite="${2:-trixie}" packages="${3:-}"

say() { echo "base: $*" >&2; }
fail() { say "$@"; exit 78; }

# shellcheck source=images/debian.sh
source "$(dirname "$0")/debian.sh"
if ! command -v mmdebstrap >/dev/null; then
    on_debian || fail "mmdebstrap is not installed, which is a package of Debian's. Elsewhere:" \
        "docker pull debian:trixie-slim, or bring a base along with 'docker load', then make image BASE=its-name"
    install_packages mmdebstrap
fi
if [[ -n "${ARCHITECTURE:-}" ]] && ! arch-test "$ARCHITECTURE" >/dev/null 2>&1; then
    fail "this machine runs no programs for $ARCHITECTURE. On Debian: apt-get install arch-test qemu-user-static"
fi

# A Debian host's own mirrors are used; without them mmdebstrap takes Debian's defaults.
# shellcheck disable=SC2016  # apt's own variable
mirrors=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' 'Origin: Debian' 2>/dev/null |
    sort --unique | grep --invert-match backports || true)
archive=$(grep --invert-match security <<<"$mirrors" | head --lines=1 || true)
security=$(grep security <<<"$mirrors" | head --lines=1 || true)
keyring=(--keyring=/usr/share/keyrings/debian-archive-keyring.gpg)
[[ -r /usr/share/keyrings/debian-archive-keyring.gpg ]] || keyring=()

say "building Debian $suite from packages as $tag"
work=$(mktemp --directory)
trap 'rm --recursive --force "$work"' EXIT
mmdebstrap --quiet --variant=minbase ${ARCHITECTURE:+"--architectures=$ARCHITECTURE"} ${packages:+"--include=$packages"} "${keyring[@]}" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$suite" "$work/base.tar" ${archive:+"deb $archive $suite main" "deb $archive $suite-updates main"} \
    ${archive:+${security:+"deb $security $suite-security main"}} || {
    ((EUID == 0)) || command -v newuidmap >/dev/null ||
        fail "an ordinary user needs newuidmap for this. Type: sudo apt-get install uidmap, or sudo $0 $tag $suite $packages"
    exit 1
}
# Not imported: older engines give that the host's architecture, whatever they are told.
printf 'FROM scratch\nADD base.tar /\nCMD ["bash"]\n' >"$work/Dockerfile"
docker buildx build --quiet --load ${ARCHITECTURE:+--platform "linux/$ARCHITECTURE"} --tag "$tag" "$work" >/dev/null
say "$tag: $(docker image inspect --format '{{.Size}}' "$tag" | numfmt --to=si)B"
