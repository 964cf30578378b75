"""The address of a store, as a user types it: `s3://bucket/path`. Every start of the launcher imports this."""

import re
from typing import NamedTuple

SUPPORTED = "s3://BUCKET[/PATH], gs://BUCKET[/PATH], az://CONTAINER[/PATH] or file:///FOLDER"
ADDRESS = r"(?s)([A-Za-z][\w+.-]*)://(.*)"
# Names of buckets, as each cloud has them. Dots are allowed in those of S3 and Google.
BUCKETS = {
    "s3": r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    "gs": r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]",
    "az": r"[a-z0-9](?:-?[a-z0-9]){2,62}",
}
SEGMENT = r"[\w.=+@,-]+"
# The variables for what some tools take in an address: an account, keys, a signature, a server.
VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS and GOOGLE_BASE_URL",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, and AZURE_STORAGE_ENDPOINT",
}


class StoreAddress(NamedTuple):
    """A store: its scheme, its bucket (empty for `file`), and the path in it, without a slash at its end."""

    scheme: str
    bucket: str
    path: str

    def __str__(self) -> str:
        """The address in its usual form."""
        inner = "/".join(filter(None, (self.bucket, self.path)))
        return f"{self.scheme}://{inner}"

    @property
    def folder(self) -> str:
        """The folder of this machine that the store is; empty for one that a library reaches."""
        return self.path if self.scheme == "file" else ""

    def split(self) -> "tuple[StoreAddress, str]":
        """The store that a run is in, and the run's name, where this is the address of a run. ValueError where it has no name."""
        above, _, name = self.path.rpartition("/")
        if not name or (self.scheme == "file" and not above):
            raise ValueError(f"the name of a run is missing: {self}/RUN is needed")
        return self._replace(path=above), name


def parse_store(text: str) -> StoreAddress | None:
    """Return the store that an address means; None for an empty text. Raises ValueError with what is supported."""
    if not text:
        return None
    found = re.fullmatch(ADDRESS, text)
    if found is None or found[1].lower() not in (*BUCKETS, "file"):
        meant = f"; perhaps file://{text} is meant" if text.startswith("/") else ""
        raise ValueError(f"{SUPPORTED} is needed; others are not supported{meant}")
    scheme = found[1].lower()
    if scheme == "file":
        if not found[2].startswith("/") or not found[2].strip("/"):
            raise ValueError("file:// needs an absolute path of a folder, such as file:///mnt/backup/runs")
        return StoreAddress(scheme, "", "/" + _checked(found[2].strip("/")))
    bucket, _, path = found[2].partition("/")
    if {*bucket} & {*":@"} or {*found[2]} & {*"?#"}:  # what it was is not repeated: it may be a key
        raise ValueError(
            f"{scheme}://{'CONTAINER' if scheme == 'az' else 'BUCKET'}[/PATH] is needed, without an account, a key, a host or "
            f"parameters (?). These are set by {VARIABLES[scheme]}"
        )
    if not re.fullmatch(BUCKETS[scheme], bucket):
        raise ValueError(
            f"{scheme}:// needs the name of a {'container' if scheme == 'az' else 'bucket'}, and a path in it if you like: "
            f"{SUPPORTED} is needed"
        )
    return StoreAddress(scheme, bucket, _checked(path.strip("/")))


def _checked(path: str) -> str:
    parts = path.split("/") if path else []
    odd = next((part for part in parts if not re.fullmatch(SEGMENT, part) or part in (".", "..")), None)
    if odd is not None:
        odd = re.sub(r"(?<=[?#]).+", "…", odd)  # what follows may be a key
        raise ValueError(f"letters, digits and -_.=+@, are allowed in each part of a store's path, not {odd!r}")
    return path


def is_store(text: str) -> bool:
    """Whether a text is meant as the address of a store."""
    found = re.fullmatch(ADDRESS, text)
    return found is not None and found[1].lower() in (*BUCKETS, "file")
