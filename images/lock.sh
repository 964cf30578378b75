#!/usr/bin/env bash
# Write the lock of an image that has another PyTorch than .venv: `make lock-image VARIANT=cpu`.
#
# All other packages have the versions of locks/requirements.lock. WHEELS names the index or the folder that has this PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=images/variant.sh
source images/variant.sh
if [[ "$LOCK" == locks/requirements.lock ]]; then
    echo "lock: $variant has the lock of .venv. Type: make lock; for another image, make lock-image VARIANT=cpu" >&2
    exit 78
fi
work=$(mktemp --directory)
trap 'rm --recursive "$work"' EXIT

sed --quiet 's/^\([a-z].*\) \\$/\1/p' locks/requirements.lock |
    grep --invert-match --extended-regexp '^(torch|torchvision|triton|nvidia-.*-cu12|cuda-[a-z]+|setuptools)==' >"$work/constraints"
from=()
case "${WHEELS:-}" in
    '') ;;
    http*) from=(--extra-index-url "$WHEELS" --index-strategy unsafe-best-match) ;;
    *) from=(--find-links "$WHEELS") ;;
esac

resolve() { # resolve PROCESSOR
    .venv/bin/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
        --python-version "$PYTHON_VERSION" --python-platform "$1-unknown-linux-gnu" "${from[@]}" \
        --constraint "$work/constraints" --extra train --extra store --extra "$variant" pyproject.toml --output-file "$work/$1" >/dev/null
}
resolve x86_64
if [[ -z "$STAND_IN" ]]; then # which has one wheel, for x86-64: else one lock for both processors
    resolve aarch64
    diff "$work/x86_64" "$work/aarch64" >&2 || { echo "lock: x86-64 (<) and arm64 (>) need different packages, as above" >&2; exit 1; }
fi
cat "$work/x86_64" >"$LOCK"
