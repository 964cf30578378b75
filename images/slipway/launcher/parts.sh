#!/usr/bin/env bash
# Put what the image `launcher` contains into /launcher. Called by the Dockerfile.
#
#   parts.sh              tini and the packages that the launcher imports, for x86-64 and for arm64
#   parts.sh wheel /src   Slipway's own wheel, made from /src
set -euo pipefail

if [[ "${1:-}" == wheel ]]; then
    /tool/bin/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --wheel-dir /launcher/wheels "$2"
    find /launcher -exec touch --no-dereference --date=@0 {} +
    exit
fi

if [[ -s /run/secrets/ca ]]; then export PIP_CERT=/run/secrets/ca; fi
if [[ -s /run/secrets/pip ]]; then export PIP_CONFIG_FILE=/run/secrets/pip; fi
export PIP_DEFAULT_TIMEOUT=60 PIP_RETRIES=10 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

for architecture in amd64 arm64; do dpkg --add-architecture "$architecture"; done
apt-get update --quiet --quiet
DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends -o Dpkg::Use-Pty=0 \
    ca-certificates python3-venv
for pair in amd64:x86_64 arm64:aarch64; do
    (cd /tmp && apt-get download --quiet --quiet "tini:${pair%:*}" && dpkg-deb --extract tini_*_"${pair%:*}".deb tini)
    install -D /tmp/tini/usr/bin/tini-static "/launcher/tini-${pair#*:}" # Debian's other one needs a glibc
done
install -D --mode=644 /tmp/tini/usr/share/doc/tini/copyright /launcher/tini.copyright

# Of the lock: what pyproject.toml says that the launcher imports, and what builds its wheel.
packages=$(sed -n '/^dependencies = \[/,/^\]/s/^ *"\([a-z-]*\).*/\1/p' /build/pyproject.toml | paste --serial --delimiters='|')
locked() { awk -v wanted="^($1)==" '/^[a-z]/ { on = $0 ~ wanted } on' /build/requirements.lock >"/build/$2"; }
locked "$packages" launcher.lock
locked setuptools tool.lock
python3 -m venv /tool
if [[ -s /run/secrets/wheels ]]; then
    locked "$packages|setuptools" offered.lock
    /tool/bin/python /build/offered.py /build/offered.lock /wheels </run/secrets/wheels
fi
/tool/bin/pip install --quiet --require-hashes --requirement /build/tool.lock --find-links /wheels
for machine in x86_64 aarch64; do
    /tool/bin/pip download --quiet --no-deps --require-hashes --requirement /build/launcher.lock --find-links /wheels \
        --only-binary :all: --python-version 3.11 --platform "manylinux2014_$machine" --dest /launcher/wheels
done
