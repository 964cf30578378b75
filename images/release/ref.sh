#!/usr/bin/env bash
# Print which git tag is to be published: the one that was pushed (GITHUB_REF), else the newest release: `make release-ref`.
# Prints nothing where there is no release yet.
set -euo pipefail

if [[ "${GITHUB_REF:-}" == refs/tags/* ]]; then
    echo "${GITHUB_REF#refs/tags/}"
else
    git tag --list 'v*' --sort=-version:refname | { grep --extended-regexp '^v[0-9]+\.[0-9]+\.[0-9]+$' || true; } | sed -n 1p
fi
