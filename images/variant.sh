# Sourced by the scripts of images/, in the root of the repository: which image of the family is meant.
#
# VARIANT names a file in images/slipway, without .conf. Where it is unset, the tag of IMAGE names it (slipway:dev-cpu), else it is
# cuda12. ARCHITECTURE is the one that the image is for, as Docker calls it, by default that of this machine. Sets `variant`, what its file
# sets, and `image`, the image's name on this machine.
# shellcheck shell=bash

tag="${IMAGE:-}" tagged="" variants=()
tag="${tag%@*}" # a digest
if [[ "$tag" == *:* ]]; then tag="${tag##*:}"; else tag=""; fi
for file in images/slipway/*.conf; do
    name=$(basename "$file" .conf)
    variants+=("$name")
    if [[ "-$tag-" == *"-$name-"* ]]; then tagged="$name"; fi
done
variant="${VARIANT:-${tagged:-cuda12}}"
if [[ " ${variants[*]} " != *" $variant "* ]]; then
    echo "image: VARIANT=$variant, but the images are ${variants[*]}. Type: make image VARIANT=cuda12" >&2
    exit 78
elif [[ -n "$tagged" && "$tagged" != "$variant" ]]; then
    echo "image: VARIANT=$variant, but IMAGE=$IMAGE is the name of a $tagged image. Leave one of them out." >&2
    exit 78
fi
case "${ARCHITECTURE:=$(uname -m)}" in
    x86_64) ARCHITECTURE=amd64 ;;
    aarch64) ARCHITECTURE=arm64 ;;
esac
# shellcheck source=/dev/null
source "images/slipway/$variant.conf"

# shellcheck disable=SC2034  # for the script that sources this
image="${IMAGE:-}"
if [[ -z "$image" ]]; then
    image=slipway:dev
    if [[ "$variant" != cuda12 ]]; then image="slipway:dev-$variant"; fi
fi
