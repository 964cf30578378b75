#!/usr/bin/env bash
# Make .venv from a lock file: `entrypoint/setup.sh locks/requirements.lock`. Called by make; may be called again at any time.
#
# The lock names everything that is needed, so no dependencies are looked for. The wheels stay in a cache that all checkouts
# share. .venv/wheels leads there: images/build.sh offers them to the image.
set -euo pipefail
cd "$(dirname "$0")/.."

lock="$1"
needed_gb=1
has_torch() { compgen -G ".venv/lib/python3.*/site-packages/torch/version.py" >/dev/null; }
if [[ "$lock" == locks/requirements.lock ]] && ! has_torch; then
    needed_gb=13 # the wheels beside .venv (8 GB), and as much again as the wheels while they are fetched
fi

# Debian's python3 comes without venv; a pyenv shim is found but does not start. So each is tried.
find_python() {
    local candidate without_venv=""
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
        without_venv="$candidate"
    done
    if [[ -n "$without_venv" ]]; then
        echo "setup: $without_venv cannot make virtual environments. On Debian: apt-get install python3-venv" >&2
    else
        echo "setup: no Python 3.11, 3.12 or 3.13 was found. On Debian: apt-get install python3 python3-venv," \
            "or name one: make setup PYTHON=/path/to/python3.12" >&2
    fi
    return 78
}

say() { echo "setup: $*" >&2; }

# What a step prints goes to the log; an error shows the log's end and where the whole of it is.
step() {
    "$@" >>"$log" 2>&1 || {
        local code=$?
        say "this failed with exit code $code: $*"
        tail -n 12 "$log" >&2
        say "all of what it said: $PWD/$log"
        exit "$code"
    }
}

# In MB: the wheels that are here, and what pip has of others so far.
fetched() {
    local size
    read -r size _ < <(du --summarize --total --block-size=1M "$wheels" .tmp | tail -n 1)
    echo "$size"
}

gigabytes() { echo "$(($1 / 1000)).$(($1 % 1000 / 100)) GB"; }

# Somebody who watches sees it move.
show_progress() {
    [[ -t 2 ]] || return 0
    while sleep 1; do printf '\rsetup: %s so far ' "$(gigabytes $(($(fetched) - before)))" >&2; done
}

free_gb=$(($(df --output=avail --block-size=1M . | tail -n 1) / 1024))
if ((free_gb < needed_gb)); then
    say "$needed_gb GB of free disk are needed here, $free_gb GB are free. Make room, or clone elsewhere."
    exit 77
fi
if [[ ! -x .venv/bin/pip ]]; then
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    "$python" -m venv .venv
fi
log=.venv/setup.log
wheels="${XDG_CACHE_HOME:-${HOME:-$PWD/.venv}/.cache}/slipway/wheels"
mkdir -p "$wheels" .tmp # pip fetches to .tmp, not to a /tmp that may be small
ln -sfn "$wheels" .venv/wheels
: >"$log"
before=$(fetched)
if ((needed_gb > 1)); then
    say "fetching PyTorch and CUDA 12: 4.2 GB, less what is in $wheels already; .venv takes 8 GB, and $free_gb GB are free"
else
    say "downloading packages that are not in the cache ($wheels)"
fi
show_progress &
progress=$!
trap 'kill $progress 2>/dev/null || true' EXIT
TMPDIR="$PWD/.tmp" step .venv/bin/pip download --disable-pip-version-check --no-cache-dir --require-hashes \
    --no-deps --progress-bar off --requirement "$lock" --dest "$wheels"
kill $progress 2>/dev/null || true
say "fetched $(gigabytes $(($(fetched) - before))) in $SECONDS s; installing into .venv"
step .venv/bin/pip install --disable-pip-version-check --require-hashes --no-deps --requirement "$lock" --no-index \
    --find-links "$wheels"
step .venv/bin/pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
# An editable installation leaves it out; Python looks for such files in site-packages alone.
step cp entrypoint/slipway.pth "$(echo .venv/lib/python3.*/site-packages)"
rm -rf .tmp
say "done in $SECONDS s ($log). To use it, type: source .venv/bin/activate"
