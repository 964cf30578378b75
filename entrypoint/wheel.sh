#!/usr/bin/env bash
# Make the launcher's wheel, dist/slipway-VERSION-py3-none-any.whl, and print its name: `make wheel` (DIST=… is another folder).
#
# From a copy of what git keeps: setuptools would also pack what an earlier build left behind in build/.
set -euo pipefail
cd "$(dirname "$0")/.."

dist="${DIST:-dist}"
copy=$(mktemp --directory)
trap 'rm --recursive --force "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from=- --ignore-failed-read | tar --extract --directory="$copy"
.venv/bin/pip wheel --disable-pip-version-check --quiet --no-deps --no-build-isolation --no-index --wheel-dir "$copy/made" "$copy"
name=$(basename "$copy"/made/*.whl)
mkdir --parents "$dist"
mv "$copy/made/$name" "$dist/$name.part"
mv "$dist/$name.part" "$dist/$name"
echo "$dist/$name"
