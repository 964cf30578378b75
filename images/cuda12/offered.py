"""Copy the wheels that images/build.sh offers, and that fit this Python, into a folder: `offered.py FOLDER <ADDRESS`.

Whatever is not had from there pip fetches afterwards, and it checks every file against the lock.
"""

import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote
from urllib.request import urlopen

from pip._vendor.packaging.tags import sys_tags
from pip._vendor.packaging.utils import parse_wheel_filename

PATIENCE = 5  # s without a byte; a firewall may keep containers from this machine's own ports


def copy_offered(address: str, folder: Path) -> int:
    """Copy what is not there yet; return the bytes.

    Raises:
        OSError: the address does not answer, or ends in the middle of a file.
    """
    fitting, copied = set(sys_tags()), 0
    with urlopen(address, timeout=PATIENCE) as page:  # noqa: S310
        offered = re.findall(r'href="([^"/]+\.whl)"', page.read().decode())
    for quoted in offered:
        wheel = folder / unquote(quoted)
        if not wheel.exists() and parse_wheel_filename(wheel.name)[3] & fitting:
            url = f"{address}/{quoted}"
            with urlopen(url, timeout=PATIENCE) as source, wheel.open("wb") as target:  # noqa: S310
                shutil.copyfileobj(source, target, 1 << 20)
            copied += wheel.stat().st_size
    return copied


if __name__ == "__main__":
    try:
        copied = copy_offered(sys.stdin.read().strip(), Path(sys.argv[1]))
        print(f"wheels: {copied / 1e9:.2f} GB were on this machine already")
    except OSError as error:
        print(f"wheels: this machine's own cannot be had ({error}); all are fetched")
