# Sourced by the scripts of images/ that install what they need where that is a package of Debian's. They define `say` and `fail`.
# shellcheck shell=bash

# Root's commands: as we are, or through sudo without a password.
as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        sudo -n true 2>/dev/null || fail "'$*' needs root, and sudo asks for a password. Type: sudo make $(basename "$0" .sh)"
        sudo -n "$@"
    fi
}

on_debian() { [[ -r /etc/debian_version ]] && command -v apt-get >/dev/null && grep -q '^ID=debian' /etc/os-release; }

install_packages() { # install_packages PACKAGE…
    say "installing from Debian's packages: $*"
    as_root apt-get update --quiet --quiet
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends \
        -o Dpkg::Use-Pty=0 "$@" >/dev/null
}
