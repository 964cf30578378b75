#!/usr/bin/env bash
# Build the image: `make image`. `make image BASE=… CA=… PIP_CONF=… IMAGE=…` change what it is built from and called.
set -euo pipefail
cd "$(dirname "$0")/.."

image="${IMAGE:-slipway:dev}"
base="${BASE:-debian:trixie-slim}"
readonly own_base=slipway-base:trixie

say() { echo "image: $*" >&2; }

docker version >/dev/null 2>&1 || { say "no Docker Engine answers: make engine"; exit 78; }

# The named base where it is at hand or a registry has it, else the same from Debian packages.
if [[ -z "${BASE:-}" ]] && ! docker image inspect "$base" >/dev/null 2>&1 &&
    ! timeout 120 docker pull --quiet "$base" >/dev/null 2>&1; then
    say "no image registry gives $base; taking the same Debian, built from packages (make base)"
    docker image inspect "$own_base" >/dev/null 2>&1 || images/base.sh "$own_base"
    base="$own_base"
fi

# A site's certificate authority (by default this machine's own list) and pip.conf are secrets of the build: they are
# in no layer.
secrets=()
ca="${CA:-/etc/ssl/certs/ca-certificates.crt}"
if [[ -r "$ca" ]]; then secrets+=(--secret "id=ca,src=$ca"); fi
if [[ -n "${PIP_CONF:-}" ]]; then secrets+=(--secret "id=pip,src=$PIP_CONF"); fi

# What `make setup` has fetched is offered to the build, on the bridge that its containers hang on. The address is a secret,
# too: the layers are the same with it and without. An engine elsewhere has no such bridge here; it fetches everything.
offer_wheels() {
    local format='{{with index .IPAM.Config 0}}{{or .Gateway .Subnet}}{{end}}' gateway server work
    gateway=$(docker network inspect bridge --format "$format" 2>/dev/null) || return 0
    if [[ "$gateway" == */* ]]; then gateway="${gateway%.*}.1"; fi # not every engine names it; it is the first address
    work=$(mktemp --directory)
    .venv/bin/python -u -m http.server --bind "$gateway" --directory .venv/wheels 0 >"$work/said" 2>/dev/null &
    server=$!
    # shellcheck disable=SC2064  # both are known now
    trap "kill $server 2>/dev/null || true; rm --recursive '$work'" EXIT
    until grep --only-matching 'http://[0-9.:]*' "$work/said" >"$work/address"; do
        kill -0 "$server" 2>/dev/null || return 0
        sleep 0.1
    done
    secrets+=(--secret "id=wheels,src=$work/address")
}
if [[ -d .venv/wheels ]]; then offer_wheels; fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
revision=$(git describe --always --dirty --exclude='*' 2>/dev/null || echo unknown)
say "building $image from $base; the first time this fetches about 4.2 GB and takes some minutes"
docker buildx build --load --file images/cuda12/Dockerfile --tag "$image" \
    --build-arg "BASE=$base" --build-arg "VERSION=$version" --build-arg "REVISION=$revision" "${secrets[@]}" .
say "$image: $(docker image inspect --format '{{.Size}}' "$image" | numfmt --to=si --format=%.2f)B"
