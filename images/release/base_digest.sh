#!/usr/bin/env bash
# Print the image's base with the digest that its tag has now, for BASE of all further steps: `make base-digest`.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=images/variant.sh
source images/variant.sh
base="${BASE:-debian:$SUITE-slim}"
docker pull --quiet "$base" >/dev/null
digest=$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$base" | sed -n 's/.*@//p' | sed -n 1p)
[[ -n "$digest" ]] || { echo "base-digest: no registry has given $base a digest" >&2; exit 78; }
echo "${base%@*}@$digest"
