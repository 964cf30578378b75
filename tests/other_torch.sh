#!/usr/bin/env bash
# Run the tests of own scripts with another PyTorch: `make test-torch TORCH=2.13.0`. ARGS="…" are pytest's arguments.
#
# The jobs of these tests run in an environment that has this checkout's wheel, that PyTorch with what it needs, and NumPy:
# .venv/torch/VERSION, which takes 1 to 8 GB and can be removed at any time. PyTorch comes from where pip is configured to look. pytest
# itself runs in .venv, which needs no PyTorch for these tests. They are the ones with the mark `any_torch`.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "test-torch: $*" >&2; }

version="${TORCH:-}"
if [[ ! "$version" =~ ^2\.[0-9]+\.[0-9]+([+][a-z0-9.]+)?$ ]]; then
    say "TORCH='$version' is not a version of PyTorch such as 2.13.0. Type: make test-torch TORCH=2.13.0"
    exit 78
fi
folder="$PWD/.venv/torch/$version"
python="$folder/bin/python"
install() { .venv/bin/pip --disable-pip-version-check --python "$python" install --quiet "$@"; }

[[ -x "$python" ]] || .venv/bin/python -m venv --without-pip "$folder"
say "installing torch $version, NumPy and this checkout's wheel into $folder"
wheel=$(DIST="$folder/dist" entrypoint/wheel.sh)
install "torch==$version" numpy "$wheel"
install --no-deps --force-reinstall "$wheel" # the version is the same after each change
# Somewhere else: -m looks in the working directory first.
(cd / && "$python" -c 'import torch, slipway; print(f"test-torch: torch {torch.__version__} and {slipway.__file__}")') >&2

mapfile -t files < <(grep --files-with-matches any_torch tests/launch/test_*.py)
SLIPWAY_TEST_PYTHON="$python" exec .venv/bin/python -m pytest "${files[@]}" -m any_torch --numprocesses 2 --dist worksteal "$@"
