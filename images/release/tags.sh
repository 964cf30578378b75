#!/usr/bin/env bash
# Print the tags under which this version of an image is published, one per line: `make tags`. The first one is never given again.
#
#   0.2.1    -> 0.2.1-cuda12-torch2.10, and three that move: 0.2.1-cuda12, 0.2-cuda12, cuda12
#   0.2.1rc1 -> 0.2.1rc1-cuda12-torch2.10 alone
#   REBUILD=20260110: the same release with Debian's newest packages: 0.2.1-cuda12-torch2.10-20260110, and what moves
#   RELEASE=v0.2.1: fails unless this is the version in pyproject.toml
#
# No tag changes its CUDA version, so there is no `latest`. images/README.md has the table of them.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=images/variant.sh
source images/variant.sh
version="${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}"
public="${TORCH%%+*}" # 2.10.0 of 2.10.0+cu128

if [[ -n "${RELEASE:-}" && "$RELEASE" != "v$version" ]]; then
    echo "tags: the tag $RELEASE is not v$version, the version in pyproject.toml. Set one right." >&2
    exit 78
fi
echo "$version-$variant-torch${public%.*}${REBUILD:+-$REBUILD}"
if [[ "$version" =~ ^([0-9]+\.[0-9]+)\.[0-9]+$ ]]; then
    printf '%s\n' "$version-$variant" "${BASH_REMATCH[1]}-$variant" "$variant"
fi
