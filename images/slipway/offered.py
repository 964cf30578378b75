"""Copy the wheels of a lock that images/build.sh offers, and that fit this Python: `offered.py LOCK FOLDER <ADDRESS`.

Whatever is not had from there pip fetches afterwards, and it checks every file against the lock.
"""

import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote
from urllib.request import ProxyHandler, build_opener

from pip._vendor.packaging.tags import sys_tags
from pip._vendor.packaging.utils import parse_wheel_filename

PATIENCE = 5  # s without a byte; a firewall may keep containers from this machine's own ports


def copy_offered(address: str, lock: Path, folder: Path) -> int:
    """Copy what is not there yet; return the bytes.

    Raises:
        OSError: the lock cannot be read, or the address does not answer.
    """
    locked = set(re.findall(r"^(\S+==\S+)", lock.read_text(), re.MULTILINE))
    fitting, copied = set(sys_tags()), 0
    direct = build_opener(ProxyHandler({}))  # a site's proxy does not reach this machine's own ports
    with direct.open(address, timeout=PATIENCE) as page:
        offered = re.findall(r'href="([^"/]+\.whl)"', page.read().decode())
    for quoted in offered:
        wheel = folder / unquote(quoted)
        name, version, _, tags = parse_wheel_filename(wheel.name)
        if f"{name}=={version}" in locked and tags & fitting and not wheel.exists():
            url = f"{address}/{quoted}"
            with direct.open(url, timeout=PATIENCE) as source, wheel.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            copied += wheel.stat().st_size
    return copied


if __name__ == "__main__":
    try:
        copied = copy_offered(sys.stdin.read().strip(), Path(sys.argv[1]), Path(sys.argv[2]))
        print(f"wheels: {copied / 1e9:.2f} GB were on this machine already")
    except OSError as error:
        print(f"wheels: this machine's own cannot be had ({error}); all are fetched")
