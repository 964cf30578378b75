#!/usr/bin/env bash
# Take the bill of materials out of the image: `make sbom`. It lies in dist/ as the image's own does, byte for byte.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=images/variant.sh
source images/variant.sh
built_for=$(docker image inspect --format '{{.Architecture}}' "$image" 2>/dev/null) ||
    { echo "sbom: there is no image $image. Type: make image VARIANT=$variant" >&2; exit 78; }
bill="dist/slipway-$(images/release/tags.sh | sed -n 1p)-$built_for.cdx.json" # the wheels of each architecture have their own checksums
mkdir --parents dist
container=$(docker create "$image")
trap 'docker rm "$container" >/dev/null' EXIT
docker cp "$container:/opt/slipway/share/sbom.cdx.json" "$bill.part" >/dev/null
mv "$bill.part" "$bill"
echo "$bill"
