#!/usr/bin/env bash
# Print the tags under which this version is published, one per line: `make tags`. The first one is never given again.
#
#   0.2.1    -> 0.2.1-torch2.10.0-cu128, and two that move: 0.2-torch2.10.0-cu128, latest
#   0.2.1rc1 -> 0.2.1rc1-torch2.10.0-cu128 alone
#   REBUILD=20260110: the same release with Debian's newest packages: 0.2.1-torch2.10.0-cu128-20260110, and what moves
#   RELEASE=v0.2.1: fails unless this is the version in pyproject.toml
set -euo pipefail
cd "$(dirname "$0")/../.."

version="${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}"
torch=$(sed -n 's/.*slipway\.torch="\(.*\)".*/\1/p' images/cuda12/Dockerfile)
suffix="torch${torch/+/-}" # a tag may hold no plus

if [[ -n "${RELEASE:-}" && "$RELEASE" != "v$version" ]]; then
    echo "tags: the tag $RELEASE is not v$version, the version in pyproject.toml. Set one right." >&2
    exit 78
fi
echo "$version-$suffix${REBUILD:+-$REBUILD}"
if [[ "$version" =~ ^([0-9]+\.[0-9]+)\.[0-9]+$ ]]; then
    echo "${BASH_REMATCH[1]}-$suffix"
    echo latest
fi
