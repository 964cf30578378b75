#!/usr/bin/env bash
# Push the image to REPOSITORY under the tags of `make tags`, and print it by its digest: `make push REPOSITORY=…`.
#
# What was tested is pushed, as it is; the engine packs the layers with gzip, which every engine can read. A version that
# is there already is never pushed over.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=images/variant.sh
source images/variant.sh
say() { echo "push: $*" >&2; }
fail() { say "$@"; exit 78; }

[[ -z "$STAND_IN" ]] || fail "nothing is pushed: $STAND_IN. See images/slipway/$variant.conf."
[[ -n "${REPOSITORY:-}" ]] || fail "REPOSITORY names none. Type: make push REPOSITORY=registry/owner/name"
labelled=$(docker image inspect --format '{{index .Config.Labels "slipway.variant"}}' "$image" 2>/dev/null) ||
    fail "there is no image $image. Type: make image VARIANT=$variant"
[[ "$labelled" == "$variant" ]] || fail "$image is '$labelled' by its label slipway.variant, and its tags would say $variant." \
    "Build it: make image VARIANT=$variant"
mapfile -t tags < <(images/release/tags.sh)
((${#tags[@]})) || exit 78

if answer=$(docker buildx imagetools inspect "$REPOSITORY:${tags[0]}" 2>&1); then
    fail "$REPOSITORY:${tags[0]} is there already and stays what it is. Raise the version in pyproject.toml."
elif [[ "$answer" != *"not found"* ]]; then
    fail "$REPOSITORY does not say whether it has ${tags[0]}: $answer"
fi
for tag in "${tags[@]}"; do
    say "$REPOSITORY:$tag"
    docker tag "$image" "$REPOSITORY:$tag"
    docker push --quiet "$REPOSITORY:$tag" >&2
done
docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$image" |
    grep --fixed-strings "$REPOSITORY@" | sed -n 1p
docker image rm --no-prune "${tags[@]/#/$REPOSITORY:}" >/dev/null
