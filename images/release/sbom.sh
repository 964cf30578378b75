#!/usr/bin/env bash
# Take the bill of materials out of the image: `make sbom`. It lies in dist/ as the image's own does, byte for byte.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=images/variant.sh
source images/variant.sh
docker image inspect "$image" >/dev/null 2>&1 || { echo "sbom: there is no image $image. Type: make image VARIANT=$variant" >&2; exit 78; }
bill="dist/slipway-$(images/release/tags.sh | sed -n 1p).cdx.json"
mkdir --parents dist
container=$(docker create "$image")
trap 'docker rm "$container" >/dev/null' EXIT
docker cp "$container:/opt/slipway/share/sbom.cdx.json" "$bill.part" >/dev/null
mv "$bill.part" "$bill"
echo "$bill"
