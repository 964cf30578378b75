#!/usr/bin/env bash
# Install the lock's packages into the virtual environment /opt/slipway. Called by the Dockerfile.
set -euo pipefail

# A site's own certificate authority and its pip.conf (an index of its own) come as build secrets, not in a layer.
if [[ -s /run/secrets/ca ]]; then export PIP_CERT=/run/secrets/ca; fi
if [[ -s /run/secrets/pip ]]; then export PIP_CONFIG_FILE=/run/secrets/pip; fi
export PIP_DEFAULT_TIMEOUT=60 PIP_RETRIES=10
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1

python3 -m venv /opt/slipway
pip=/opt/slipway/bin/pip
offered=/run/secrets/wheels
if [[ -s "$offered" ]]; then /opt/slipway/bin/python /build/offered.py /build/requirements.lock /wheels <"$offered"; fi
megabytes() { du --summarize --block-size=1MB /wheels | cut --fields=1; }
before=$(megabytes)
# A wheel that is on no index, such as a CPU build of PyTorch, is taken from those that were offered.
"$pip" download --quiet --require-hashes --requirement /build/requirements.lock --find-links /wheels --dest /wheels
echo "wheels: $(($(megabytes) - before)) MB were fetched"
"$pip" install --quiet --require-hashes --requirement /build/requirements.lock --no-index --find-links /wheels \
    --no-compile --report /build/report.json

# What the wheels weigh, for the report on the image (the floor under its compressed size), and their checksums, for its
# bill of materials.
mkdir --parents /opt/slipway/share
/opt/slipway/bin/python - >/opt/slipway/share/wheels.tsv <<'PYTHON'
import json, pathlib, urllib.parse
for item in json.loads(pathlib.Path("/build/report.json").read_text())["install"]:
    wheel = pathlib.Path(urllib.parse.unquote(urllib.parse.urlparse(item["download_info"]["url"]).path))
    archive = item["download_info"]["archive_info"]
    # Debian 12's pip knows the older form of the report alone.
    checksum = archive["hashes"]["sha256"] if "hashes" in archive else archive["hash"].removeprefix("sha256=")
    print(wheel.name, wheel.stat().st_size, checksum, sep="\t")
PYTHON
