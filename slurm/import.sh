#!/usr/bin/env bash
# Make the .sqsh file that pyxis and enroot start out of an image: `slurm/import.sh SOURCE [FILE.sqsh]`. SOURCE is
#
#   registry.example/owner/slipway:1.2.3-cuda12   an image of a registry, fetched by enroot; its registry#owner/… does as well
#   dockerd://slipway:dev                  an image of the Docker Engine on this machine; podman://… of Podman
#   slipway-….tar.zst                      an archive of `make save`, or .tar of `docker save`; no engine is needed
#
# FILE is by default $SHARED/images/slipway.sqsh, which slurm/train.sbatch starts. One that exists is left alone, and a new
# one is there when it is complete, so two people may import at once. TMPDIR names the disk to unpack on.
set -euo pipefail

say() { echo "import: $*" >&2; }
fail() { say "$@"; exit 78; }
misuse() { say "$@" "Type: slurm/import.sh dockerd://slipway:dev [FILE.sqsh]"; exit 2; }

bytes() { numfmt --to=si --suffix=B "$1"; }
needs() { command -v "$1" >/dev/null || fail "$1 is needed. On Debian: apt-get install $2"; }

# room FOLDER BYTES HINT: look whether they are free there, before anything is written.
room() {
    local free
    free=$(df --output=avail --block-size=1 "$1" | tail --lines=1)
    say "this takes $(bytes "$2") in $1, where $(bytes "$free") are free"
    ((free >= $2)) || fail "that is too little. $3"
}

# An image's name in docker's or enroot's spelling as enroot's URI.
registry_uri() {
    local image="${1#docker://}" registry
    registry="${image%%/*}"
    if [[ "$registry" == docker.io ]]; then
        image="registry-1.docker.io#${image#*/}" # enroot's name for Docker Hub
    elif [[ "$image" != *'#'* && "$image" == */* && "$registry" =~ [.:]|^localhost$ ]]; then # a registry, by Docker's rule
        image="$registry#${image#*/}"
    fi
    [[ "$image" == *'#'* ]] || misuse "'$image' names no registry. Docker's image of that name on this machine is" \
        "dockerd://$image, Docker Hub's is docker.io/$image."
    [[ "${image##*[/#]}" == *[:@]* ]] || misuse "'$1' names no tag, and 'latest' is another image tomorrow. Add one, as in" \
        "$1:1.2.3."
    echo "docker://$image"
}

# The docker archive of a local image or of a file, as $unpacking/image.tar.
fetch() {
    local size
    case "$source" in
        *://*)
            local engine=docker name="${source#*://}"
            [[ "$source" == dockerd://* ]] || engine=podman
            needs "$engine" "${engine/docker/docker.io}"
            size=$("$engine" image inspect --format '{{.Size}}' "$name") ||
                fail "$engine gives no image $name. '$engine images' lists those it has; 'make image' builds slipway:dev."
            ;;
        *)
            [[ -e "$source" ]] || fail "there is no $source"
            size=$(stat --format=%s "$source")
            if [[ "$source" == *.zst ]]; then size=$((2 * size)); fi # Slipway's layers, packed by zstd -3
            ;;
    esac
    room "${TMPDIR:-/tmp}" $((2 * size)) "Name a folder on another disk: TMPDIR=/path slurm/import.sh …"
    room "$folder" "$size" "Make room there, or name another FILE.sqsh."
    if [[ "$source" == *://* ]]; then
        say "asking $engine for $name"
        "$engine" save "$name" >"$unpacking/image.tar"
        return
    fi
    [[ -e "$source.sha256" ]] || fail "there is no $source.sha256, which 'make save' writes beside the archive. Bring it" \
        "along. For an archive of your own: sha256sum $source >$source.sha256"
    say "checking $source"
    [[ $(sha256sum <"$source" | head --bytes=64) == $(head --bytes=64 "$source.sha256") ]] ||
        fail "$source is not what was saved: its sha256 differs from the one in $source.sha256. Copy it again."
    if [[ "$source" == *.zst ]]; then
        zstd --decompress --stdout --quiet "$source" >"$unpacking/image.tar"
    else
        ln --symbolic "$(realpath "$source")" "$unpacking/image.tar"
    fi
}

[[ $# -ge 1 && $# -le 2 && "$1" != -* ]] || misuse "one or two words are needed, the image and the file to make."
[[ -n "${2:-}${SHARED:-}" ]] || misuse "name the file to make, or in SHARED the folder that slurm/setup.sh made."
source="$1"
file=$(realpath --no-symlinks "${2:-$SHARED/images/slipway.sqsh}")
folder=$(dirname "$file")
python="${PYTHON:-python3}"

[[ "$file" == *.sqsh ]] || misuse "'$file' does not end in .sqsh."
[[ ! -e "$file" ]] || fail "$file is there already, and stays: jobs may be using it. Name another file, and that one in IMAGE" \
    "for your jobs, or take it away first: rm $file"
# setup.sh makes a folder `images` in one that people share; other folders are none of its business.
remedy="Name a file in a folder of yours."
if [[ "$folder" == */images && "$folder" != /images ]]; then remedy="Type: slurm/setup.sh $(dirname "$folder")"; fi
[[ -w "$folder" && -d "$folder" ]] || fail "$folder is no folder that $(id --user --name) may write to. $remedy"

case "$source" in
    dockerd://?* | podman://?* | *.tar | *.tar.zst)
        needs mksquashfs squashfs-tools
        if [[ "$source" == *.zst ]]; then needs zstd zstd; fi
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
            fail "Python 3.9 or newer is needed. Name one: PYTHON=/path/to/python3.11 slurm/import.sh …"
        uri=""
        ;;
    *)
        uri=$(registry_uri "$source")
        command -v enroot >/dev/null || fail "enroot is needed to fetch from a registry. Where Docker is: docker pull …," \
            "slurm/import.sh dockerd://…, and bring the .sqsh file here."
        ;;
esac

making=$(mktemp --directory "$folder/.import-XXXXXX") # beside FILE, so that a rename puts it into place
unpacking=$(mktemp --directory)
trap 'rm --recursive --force "$making" "$unpacking"' EXIT

if [[ -n "$uri" ]]; then
    say "enroot fetches $uri. Slipway's image takes 3.5GB of its cache, 7GB of its temporary folder, 7GB of $folder"
    enroot import --output "$making/image.sqsh" "$uri" || fail "enroot could not import $uri; the reason is above"
else
    fetch
    say "unpacking"
    mkdir "$unpacking/image"
    "$python" "$(dirname "$0")/unpack.py" "$unpacking/image.tar" "$unpacking/image" || exit 78
    say "packing $file"
    # As enroot does by default, but for -noF: nothing but the table of files is compressed, so that nodes start quickly. Without
    # -noF the ends of files are packed with lzo, which takes 97 % of mksquashfs's time (23 CPU seconds per 2 GB in place of 0.6)
    # and makes the file 7 % smaller.
    # shellcheck disable=SC2086  # several options
    mksquashfs "$unpacking/image" "$making/image.sqsh" -all-root -no-xattrs -no-progress -quiet -processors "$(nproc)" \
        ${ENROOT_SQUASH_OPTIONS:--comp lzo -noD -noF -exit-on-error} || fail "mksquashfs could not write $file"
fi

chmod g+r "$making/image.sqsh"
sync "$making/image.sqsh"
mv --no-clobber "$making/image.sqsh" "$file" || true # newer ones fail where the file is there
[[ ! -e "$making/image.sqsh" ]] || fail "$file was put there by somebody else in the meantime, and stays"
sync "$folder"
say "$file: $(bytes "$(stat --format=%s "$file")"). For jobs: export IMAGE=$file"
