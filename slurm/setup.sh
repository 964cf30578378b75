#!/usr/bin/env bash
# Make the folders that jobs on all nodes use, for all of a group: `slurm/setup.sh [--group NAME] DIR`.
#
#   DIR/runs     runs with their snapshots and logs, /checkpoints in the image
#   DIR/cache    data and compiled code, /data in the image
#   DIR/images   .sqsh files of slurm/import.sh
#
# The group, by default your own, may write to them, and what is made in there belongs to it (mode 3770). What exists is
# never changed; so it may be called again at any time.
set -euo pipefail

say() { echo "setup: $*" >&2; }
fail() { say "$@"; exit 78; }

case "$#:${1:-}" in
    1:[!-]*) group="" dir="$1" ;;
    3:--group) group="$2" dir="$3" ;;
    *) say "slurm/setup.sh [--group NAME] DIR"; exit 2 ;;
esac
dir=$(realpath --no-symlinks "$dir")
[[ "$dir" != / ]] || fail "/ is this machine's own. Name a folder that all nodes share: slurm/setup.sh /shared/train"
gid=$(id --group)
if [[ -n "$group" ]]; then
    gid=$(getent group "$group" | cut --delimiter=: --fields=3) ||
        fail "there is no group $group. You are in: $(id --groups --name 2>/dev/null)"
    [[ $EUID == 0 || " $(id --groups) " == *" $gid "* ]] ||
        fail "you are not in the group $group, and may give it nothing. You are in: $(id --groups --name 2>/dev/null)"
fi

make_folder() {
    mkdir --mode=700 "$1" || fail "$1 cannot be made, for the reason above. Name a folder in one of yours, or ask its owner."
    chgrp "$gid" "$1"
    chmod 3770 "$1" # nobody can remove or replace what others put there
    # With ACLs, where the file system has them, it is so at every depth, whatever the umask of those who make something.
    if command -v setfacl >/dev/null; then
        setfacl --default --modify user::rwx,group::rwx,other::--- "$1" 2>/dev/null || true
    fi
    say "made $(stat --format='%n, %A for the group %G' "$1")"
}

[[ -d "$dir" ]] || make_folder "$dir"
unshared=()
for folder in "$dir"/{runs,cache,images}; do
    if [[ ! -e "$folder" ]]; then
        make_folder "$folder"
    else
        say "left $(stat --format='%n as it is, %A of %U for the group %G' "$folder")"
        shared=$(find "$folder" -maxdepth 0 -type d -writable -perm -2070 ${group:+-group "$gid"})
        [[ -n "$shared" ]] || unshared+=("$folder")
    fi
done
((!${#unshared[@]})) || fail "not all may write there. Whoever owns it can type:" \
    "chgrp ${group:-GROUP} ${unshared[*]} && chmod g+rwxs ${unshared[*]}"
say "now make the image's file, and submit:
    slurm/import.sh dockerd://slipway:dev $dir/images/slipway.sqsh
    SHARED=$dir sbatch --nodes=2 slurm/train.sbatch gpt"
