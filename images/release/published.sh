#!/usr/bin/env bash
# Print what a release builds and publishes, as JSON for the release workflow: `make published`. Two lines:
#
#   images=[{"variant":…,"image":…,"runner":…}, …]   an image for each variant and architecture, and the runner that builds it
#   variants=["cuda12", …]                           the images for several platforms that these become
#
# A variant that is a stand-in on one of its architectures is left out, and a line on stderr says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

declare -A runners=([amd64]=ubuntu-24.04 [arm64]=ubuntu-24.04-arm)
unset IMAGE VARIANT ARCHITECTURE
settings() { # settings VARIANT ARCHITECTURE: its image, and why it is a stand-in
    (
        export VARIANT="$1" ARCHITECTURE="$2"
        # shellcheck source=images/variant.sh
        source images/variant.sh
        printf '%s\t%s\t%s\n' "$image" "$MADE_FOR" "$STAND_IN"
    )
}
images=() variants=()
for file in images/slipway/*.conf; do
    variant=$(basename "$file" .conf) these=() lacking=""
    IFS=$'\t' read -r _ architectures _ < <(settings "$variant" amd64)
    for architecture in $architectures; do
        IFS=$'\t' read -r image _ why < <(settings "$variant" "$architecture")
        these+=("{\"variant\":\"$variant\",\"architecture\":\"$architecture\",\"image\":\"$image\",\"runner\":\"${runners[$architecture]}\"}")
        lacking="${why:-$lacking}"
    done
    if [[ -n "$lacking" ]]; then
        echo "published: $variant is left out: $lacking" >&2
        continue
    fi
    images+=("${these[@]}")
    variants+=("\"$variant\"")
done
join() { local IFS=,; echo "[$*]"; }
echo "images=$(join "${images[@]}")"
echo "variants=$(join "${variants[@]}")"
