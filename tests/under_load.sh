#!/usr/bin/env bash
# Run a command while stress-ng keeps every core busy twice over: `tests/under_load.sh COMMAND…`. Ends as the command does.
set -euo pipefail
stress-ng --quiet --cpu "$((2 * $(nproc)))" &
load=$!
trap 'kill "$load" 2>/dev/null || true' EXIT
"$@"
