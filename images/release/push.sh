#!/usr/bin/env bash
# Push the image to REPOSITORY, and print it by its digest.
#
#   push.sh            under the tags of `make tags`: `make push REPOSITORY=…`
#   push.sh platform   as one part of an image for several platforms, under the first tag followed by the architecture
#                      (1.2.3-cuda13-torch2.14-arm64): `make push-platform`
#   push.sh join       pushes nothing from here, but makes one image of the parts, under the tags: `make push-joined`
#
# What was tested is pushed, as it is. The engine packs the layers with gzip, which every engine can read. With COMPRESSION=zstd skopeo
# packs them, smaller; Docker Engine 23 or newer can pull such an image. A version that is there already is never pushed over.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=images/variant.sh
source images/variant.sh
say() { echo "push: $*" >&2; }
fail() { say "$@"; exit 78; }

# The image must be there, and be what its tags would say. Sets `built_for`, its architecture.
check_image() {
    local labelled format='{{index .Config.Labels "slipway.variant"}}:{{.Architecture}}'
    labelled=$(docker image inspect --format "$format" "$image" 2>/dev/null) ||
        fail "there is no image $image. Type: make image VARIANT=$variant"
    built_for="${labelled#*:}" labelled="${labelled%%:*}"
    [[ "$labelled" == "$variant" ]] || fail "$image is '$labelled' by its label slipway.variant, and its tags would say $variant." \
        "Build it: make image VARIANT=$variant"
}

# Whether the repository has a tag. That it does not answer ends this.
has_tag() { # has_tag TAG
    local answer
    if answer=$(docker buildx imagetools inspect "$REPOSITORY:$1" 2>&1); then return; fi
    [[ "$answer" == *"not found"* ]] || fail "$REPOSITORY does not say whether it has $1: $answer"
    return 1
}

push_gzip() { # push_gzip TAG…
    local tag name ours=() # names that were not on this machine before
    for tag in "$@"; do
        name="$REPOSITORY:$tag"
        say "$name"
        docker image inspect "$name" >/dev/null 2>&1 || ours+=("$name")
        docker tag "$image" "$name"
        docker push --quiet "$name" >&2
    done
    ((${#ours[@]} == 0)) || docker image rm --no-prune "${ours[@]}" >/dev/null
}

# The layers are packed once: the further tags are copies of the first within the registry.
push_zstd() { # push_zstd TAG…
    local from options=(--format oci --dest-compress-format zstd) tag
    from="docker-daemon:$(docker image inspect --format '{{.Id}}' "$image")"
    for tag in "$@"; do
        say "$REPOSITORY:$tag"
        # skopeo's policy says which images may be pulled; this one was built here.
        skopeo --insecure-policy copy --quiet "${options[@]}" "$from" "docker://$REPOSITORY:$tag" >&2
        from="docker://$REPOSITORY:$tag" options=()
    done
}

push_platform() {
    [[ " $MADE_FOR " == *" $built_for "* ]] ||
        fail "$image is for $built_for, and $variant is published for $MADE_FOR (images/slipway/$variant.conf)."
    pushed="${tags[0]}-$built_for"
    "push_$compression" "$pushed"
}

join() {
    local each parts=()
    for each in $MADE_FOR; do
        has_tag "${tags[0]}-$each" || fail "$REPOSITORY has no ${tags[0]}-$each. On a machine with this architecture, type:" \
            "make image VARIANT=$variant && make push-platform VARIANT=$variant REPOSITORY=$REPOSITORY"
        parts+=("$REPOSITORY:${tags[0]}-$each")
    done
    say "making ${tags[*]} of ${parts[*]}"
    docker buildx imagetools create "${tags[@]/#/--tag=$REPOSITORY:}" "${parts[@]}" >&2
}

what="${1:-tags}" compression="${COMPRESSION:-gzip}"
[[ -z "$STAND_IN" ]] || fail "nothing is pushed: $STAND_IN. See images/slipway/$variant.conf."
[[ -n "${REPOSITORY:-}" ]] || fail "REPOSITORY names none. Type: make push REPOSITORY=registry/owner/name"
case "$compression" in
    gzip) ;;
    zstd) command -v skopeo >/dev/null || fail "COMPRESSION=zstd needs skopeo. On Debian: apt-get install skopeo" ;;
    *) fail "COMPRESSION=$compression is unknown. Allowed: gzip, zstd" ;;
esac
[[ "$what" == join ]] || check_image
mapfile -t tags < <(images/release/tags.sh)
((${#tags[@]})) || exit 78
if has_tag "${tags[0]}"; then
    fail "$REPOSITORY:${tags[0]} is there already and stays what it is. Raise the version in pyproject.toml."
fi
pushed="${tags[0]}"
case "$what" in
    tags) "push_$compression" "${tags[@]}" ;;
    platform) push_platform ;;
    join) join ;;
    *) fail "'$what' is unknown. Allowed: platform, join" ;;
esac
digest=$(docker buildx imagetools inspect --format '{{json .Manifest.Digest}}' "$REPOSITORY:$pushed")
echo "$REPOSITORY@${digest//\"/}"
