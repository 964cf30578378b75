"""Write the image's bill of materials (CycloneDX JSON) during its build: `python sbom.py`.

cyclonedx-py reads what the lock installed: exact versions, purls, declared licences, who needs whom. What an installed
package no longer knows, the checksum of its wheel, which the lock demanded, comes from wheels.tsv (install.sh). Without
time stamp and serial number: the same lock gives the same file, and so the same layer.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name, parse_wheel_filename

ENVIRONMENT = "/opt/slipway/bin/python"
BUILD = Path(__file__).parent
SHARE = Path("/opt/slipway/share")
BILL = SHARE / "sbom.cdx.json"


def wheel_checksums(wheels: str) -> dict[str, str]:
    """The sha256 of each wheel that was installed, by the package's name; lines of name, bytes, sha256."""
    rows = [line.split("\t") for line in wheels.splitlines()]
    return {parse_wheel_filename(name)[0]: checksum for name, _, checksum in rows}


def main() -> None:
    """Write the bill, with checksums, and check it against CycloneDX's schema."""
    tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--spec-version", "1.6"]
    bill = json.loads(subprocess.check_output([*tool, "--pyproject", BUILD / "pyproject.toml", ENVIRONMENT]))
    checksums = wheel_checksums((SHARE / "wheels.tsv").read_text())
    for component in bill["components"]:
        if checksum := checksums.pop(canonicalize_name(component["name"]), None):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    assert not checksums, f"installed, but not in the bill: {', '.join(checksums)}"
    text = json.dumps(bill, indent=1, sort_keys=True) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert problem is None, problem
    BILL.write_text(text)
    os.utime(BILL, (0, 0))
    print(f"sbom: {len(bill['components'])} packages")


if __name__ == "__main__":
    main()
