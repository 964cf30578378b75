#!/usr/bin/env bash
# Carry the image to a site without a network: `make save` there, `make load` here. ARCHIVE=… names another file.
#
#   archive.sh save   the image -> dist/slipway-VERSION-torch….tar.zst, its checksum beside it (a minute or two)
#   archive.sh load   the archive -> the engine, if its checksum is right
#
# Without a checkout: sha256sum --check FILE.sha256 && zstd --decompress --stdout FILE | docker load
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=images/variant.sh
source images/variant.sh
archive="${ARCHIVE:-dist/slipway-$(images/release/tags.sh | sed -n 1p).tar.zst}"
part="$archive.part"

say() { echo "archive: $*" >&2; }
fail() { say "$@"; exit 78; }

bytes() { numfmt --to=si --format=%.2f --suffix=B; }
progress() { if [[ -t 2 ]]; then echo --progress; else echo --no-progress; fi; }

save() {
    docker image inspect "$image" >/dev/null 2>&1 || fail "there is no image $image. Type: make image VARIANT=$variant"
    mkdir --parents "$(dirname "$archive")"
    trap 'rm --force "$part" "$part.sha256"' EXIT
    say "packing $image, $(docker image inspect --format '{{.Size}}' "$image" | bytes)"
    docker save "$image" | zstd -3 --threads=0 "$(progress)" --force --quiet -o "$part"
    # The checksum names the file as it will be called.
    sha256sum "$part" | sed "s|  .*|  $(basename "$archive")|" >"$part.sha256"
    sync "$part" "$part.sha256"
    mv "$part" "$archive"
    mv "$part.sha256" "$archive.sha256"
    say "$archive: $(stat --format=%s "$archive" | bytes), and its checksum, $archive.sha256. Take both along."
}

load() {
    [[ -e "$archive" ]] || fail "there is no $archive. Make it with 'make save' where the image is, or name yours:" \
        "make load ARCHIVE=file.tar.zst"
    [[ -e "$archive.sha256" ]] || fail "there is no $archive.sha256, which 'make save' writes beside the archive." \
        "Bring it along."
    say "checking $archive, $(stat --format=%s "$archive" | bytes)"
    (cd "$(dirname "$archive")" && sha256sum --check --status "$(basename "$archive").sha256") ||
        fail "$archive is not what was saved: its sha256 differs from the one in $archive.sha256. Copy it again."
    zstd --decompress --stdout "$archive" | docker load
}

command -v zstd >/dev/null || fail "zstd is needed. On Debian: apt-get install zstd"
case "${1:-}" in
    save) save ;;
    load) load ;;
    *) fail "one of save, load" ;;
esac
