#!/usr/bin/env bash
# Ask OSV, the database of known vulnerabilities, about every package in the locks of the images: `make audit`.
#
# It needs that service on the internet. Where it does not answer nothing was audited; that is said, and is a failure.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Each exception with its reason, and when it goes.
exceptions=(
    # CVE-2026-4538: torch 2.10.0 trusts what a crafted .pt2 file holds when a local user loads it (torch.export.load).
    # Slipway neither reads nor writes such files; its weights are safetensors. 2.10.0 is the last torch for CUDA 12 on
    # the package index: this goes with the next one.
    PYSEC-2026-139
)

work=$(mktemp --directory)
trap 'rm --recursive "$work"' EXIT
# The locks have some packages in several versions; pip-audit wants each name once. So the first versions go into one list, the
# second ones into another.
mapfile -t locks < <(sed --silent 's/^LOCK=//p' images/slipway/*.conf | sort --unique)
grep --no-filename --only-matching --extended-regexp '^[a-z0-9._-]+==[^ ;]+' "${locks[@]}" | sort --unique |
    awk -F== -v lists="$work/list" '{ print > lists "-" ++seen[$1] }'

found=0
for list in "$work"/list-*; do
    echo "audit: $(wc --lines <"$list") packages" >&2
    status=0
    .venv/bin/pip-audit --vulnerability-service osv --strict --progress-spinner off --desc off --disable-pip --no-deps \
        --requirement "$list" "${exceptions[@]/#/--ignore-vuln=}" 2>"$work/said" || status=$?
    if ((status)) && ! grep --quiet 'known vulnerabilit' "$work/said"; then
        tail --lines=1 "$work/said" >&2
        echo "audit: nothing was audited, for the reason above. Where the service answers it is asked about each package" \
            "and version in ${locks[*]}, and what it knows is a failure, except ${exceptions[*]}." >&2
        exit 69
    fi
    grep 'known vulnerabilit' "$work/said" >&2
    found=$((found | status))
done
exit "$found"
