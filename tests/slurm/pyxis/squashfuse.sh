#!/bin/bash
# What pyxis does with use_squashfuse=1, as far as a launcher can tell: `squashfuse.sh IMAGE PLACE COMMAND…`
#
# A node's first task starts the server of the root file system and becomes the command: the shell, the shim and squashfuse stay
# below it for as long as they live, and what the other tasks read comes from there, too. Without the namespaces: the image holds
# one folder, and PLACE is where all tasks of the node see it.
set -euo pipefail

image=$1 place=$2
shift 2
if [[ ${SLURM_LOCALID:-0} == 0 ]]; then
    mkdir --parents "$place"
    # The shim is whatever stands between; "true" keeps each shell from becoming what it starts.
    sh -c 'sh -c "squashfuse -f \"\$1\" \"\$2\"; true" fuse-shim "$1" "$2"; true' sh "$image" "$place" </dev/null >/dev/null 2>&1 &
fi
until mountpoint --quiet "$place"; do sleep 0.05; done
exec "$@"
