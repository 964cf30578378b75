#!/usr/bin/env bash
# Push the image `launcher` to REPOSITORY, for x86-64 and arm64, and print it by its digest: `make push-launcher`.
#
# Nothing of it is compiled here, so one machine makes it for both. Its tags are 1.2.3-launcher, which is never pushed over, and for a
# release also 1.2-launcher and launcher, which move.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { echo "push: $*" >&2; }
fail() { say "$@"; exit 78; }

[[ -n "${REPOSITORY:-}" ]] || fail "REPOSITORY names none. Type: make push-launcher REPOSITORY=registry/owner/name"
# Those of an image, with another word for the variant.
mapfile -t tags < <(IMAGE="" VARIANT=cpu images/release/tags.sh | sed --regexp-extended 's/cpu(-torch[0-9.]+)?/launcher/' | uniq)
((${#tags[@]})) || exit 78
if answer=$(docker buildx imagetools inspect "$REPOSITORY:${tags[0]}" 2>&1); then
    fail "$REPOSITORY:${tags[0]} is there already and stays what it is. Raise the version in pyproject.toml."
fi
[[ "$answer" == *"not found"* ]] || fail "$REPOSITORY does not say whether it has ${tags[0]}: $answer"
parts=()
for architecture in amd64 arm64; do
    parts+=("$REPOSITORY:${tags[0]}-$architecture")
    IMAGE="${parts[-1]}" ARCHITECTURE="$architecture" VARIANT=cpu TARGET=launcher images/build.sh
    docker push --quiet "${parts[-1]}" >&2
done
docker image rm --no-prune "${parts[@]}" >/dev/null
docker buildx imagetools create "${tags[@]/#/--tag=$REPOSITORY:}" "${parts[@]}" >&2
digest=$(docker buildx imagetools inspect --format '{{json .Manifest.Digest}}' "$REPOSITORY:${tags[0]}")
echo "$REPOSITORY@${digest//\"/}"
