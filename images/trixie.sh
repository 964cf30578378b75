#!/usr/bin/env bash
# Unpack packages of Debian 13 (trixie) into a folder: `images/trixie.sh FOLDER PACKAGE…`. Nothing is installed.
#
# For programs that an older Debian lacks and that run on it as they are. They come from the mirror that apt uses already, with
# an apt configuration that exists only in a temporary folder and knows of no installed package: no source is left behind.
set -euo pipefail

fail() { echo "trixie: $*" >&2; exit 78; }

folder="${1:?"which folder?"}"
shift
work=$(mktemp --directory)
trap 'rm --recursive --force "$work"' EXIT
# shellcheck disable=SC2016  # apt's own variable
site=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' 'Origin: Debian' |
    grep --invert-match --extended-regexp 'security|backports' | head --lines=1 || true)
[[ -n "$site" ]] || fail "no Debian mirror is set up in apt. Install these programs by hand: $*"
mkdir --parents "$work"/{lists/partial,cache/archives/partial} "$folder"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site trixie main" >"$work/sources.list"
apt=(apt-get --quiet --quiet -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=-
    -o Dir::State::status=/dev/null -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=)
"${apt[@]}" update
(cd "$work" && "${apt[@]}" download "$@" >/dev/null)
for package in "$work"/*.deb; do dpkg-deb --extract "$package" "$folder"; done
