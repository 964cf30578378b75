#!/usr/bin/env bash
# Train here: in the image where a Docker Engine answers, else in .venv: `make run`. Arguments go to `slipway`.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=images/variant.sh
source images/variant.sh
columns=$([[ ! -t 2 ]] || stty size <&2 | cut --delimiter=' ' --fields=2)
say() { echo "run: $*" | if ((${columns:-0})); then fold --spaces --width="$columns"; else cat; fi >&2; }

has_gpus() { command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus >/dev/null 2>&1; }
containers_see_gpus() { docker info --format '{{json .Runtimes}}' | grep --quiet nvidia || command -v nvidia-ctk >/dev/null; }

in_checkout() {
    say "$1"
    shift
    make --silent --no-print-directory setup
    exec .venv/bin/slipway "$@"
}

if ! why=$(timeout 20 docker version 2>&1); then
    if [[ "$why" == *'permission denied'* ]]; then
        in_checkout "the Docker Engine runs, but $(id -un) may not use it, so this trains in .venv (make engine says what to type)" "$@"
    fi
    in_checkout "no Docker Engine answers, so this trains in .venv (make engine installs one on Debian)" "$@"
fi
# Before 7 GB are fetched for a machine without a GPU.
if [[ -n "$CAPABILITY" && -z "${VARIANT:-}${IMAGE:-}" ]] && ! has_gpus && ! docker image inspect "$image" >/dev/null 2>&1; then
    if docker image inspect slipway:dev-cpu >/dev/null 2>&1; then
        say "no GPU here, so this trains in slipway:dev-cpu; in the image with CUDA: make run VARIANT=cuda12"
        VARIANT=cpu exec images/run.sh "$@"
    fi
    say "no GPU here, and the image with CUDA takes 7 GB. Without CUDA it takes 1 GB: make run VARIANT=cpu \
WHEELS=https://download.pytorch.org/whl/cpu"
fi
options=()
if [[ -n "$CAPABILITY" ]] && has_gpus; then # an image without CUDA trains on the CPU
    containers_see_gpus || in_checkout "Docker cannot use this machine's GPUs (NVIDIA's container toolkit is not installed), \
so this trains in .venv" "$@"
    options+=(--gpus all)
fi
image_id() { docker image inspect --format '{{.Id}}' "$image" 2>/dev/null || true; }
before=$(image_id)
images/build.sh || {
    (($? == 78)) || exit 1
    in_checkout "the image cannot be built here (above), so this trains in .venv" "$@"
}

mkdir -p runs
# Files in ./runs belong to the caller; in a rootless engine root inside is the caller outside.
user="$(id -u):0"
if docker info --format '{{.SecurityOptions}}' | grep --quiet rootless; then user=0:0; fi
if [[ -t 0 && -t 1 ]]; then options+=(--interactive --tty); fi
if [[ -e .env ]]; then options+=(--volume "$PWD/.env:/workspace/.env:ro"); fi
command=(docker run --rm "${options[@]}" --user "$user" --shm-size 1g --stop-timeout 120 --cap-drop ALL
    --security-opt no-new-privileges --volume "$PWD/runs:/checkpoints" --env "IMAGE=$image" "$image" "$@")
if [[ "$(image_id)" != "$before" ]]; then # else it was said, and the README has it
    # As one would type it: folded, a line that goes on ends with a backslash.
    echo "run: ${command[*]}" |
        if ((${columns:-0})); then fold --spaces --width="$((columns - 1))" | sed '$!s/$/\\/'; else cat; fi >&2
    say "/checkpoints in there is $PWD/runs"
fi
exec "${command[@]}"
