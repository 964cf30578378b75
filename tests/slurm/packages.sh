#!/usr/bin/env bash
# Make sure that what a Slurm cluster is made of is here, from Debian's packages. Called by `make test-slurm`.
#
# No daemon is started or enabled: the tests start their own and end them. Where the packages cannot be installed this says so
# and goes on; the tests are skipped then, which in CI is a failure.
set -euo pipefail

# Slurm itself; what the stand-in for pyxis and slurm/import.sh need.
readonly packages=(munge slurmctld slurmd slurm-client squashfs-tools acl zstd iproute2 procps)
readonly programs=(munged slurmctld slurmd srun mksquashfs setfacl zstd ip pkill)

say() { echo "slurm: $*" >&2; }
skip() { say "$@"; exit 0; }

PATH="$PATH:/usr/sbin"
for program in "${programs[@]}"; do command -v "$program" >/dev/null || missing=1; done
[[ -n "${missing:-}" ]] || exit 0
grep --quiet '^ID=debian' /etc/os-release || skip "Slurm is missing, and this is no Debian"
((EUID == 0)) || skip "Slurm is missing. Type: sudo apt-get install ${packages[*]}"
[[ -n "${CI:-}" ]] || say "installing from Debian's packages: ${packages[*]}"
# Asked before a package starts a daemon; 101 forbids it. One that is there already is left as it is.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm --force $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
fi
apt-get update --quiet --quiet || skip "Debian's packages cannot be listed"
DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends \
    -o Dpkg::Use-Pty=0 "${packages[@]}" >/dev/null || skip "Slurm could not be installed"
