#!/usr/bin/env bash
# Install a lock file into .venv/bench: whom we measure against, layered over .venv, so that torch is there once. Called by make.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ! -x .venv/bench/bin/python ]]; then
    .venv/bin/python -m venv --without-pip .venv/bench
fi
site=$(.venv/bench/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.venv/bin/python - >"$site/beneath.pth" <<'END'
import sysconfig
print(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")  # which reads the .pth files in there, too
END
# One of them is published as source alone: it is built with .venv's setuptools, which is locked, too. Debian 12's pip would not
# make a wheel of it unasked.
.venv/bin/pip --python .venv/bench/bin/python install --disable-pip-version-check --quiet --require-hashes --no-deps \
    --no-build-isolation --use-pep517 --requirement "locks/$1.lock"
