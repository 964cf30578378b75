"""Buckets of S3, Google and Azure through obstore, one wheel for all three (docs/storage.md compares it with others)."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import obstore
from obstore import exceptions

from slipway.protocol.files import LARGEST
from slipway.protocol.proxies import explain_proxy_use, proxy_variable, uses_no_proxy
from slipway.protocol.redact import redact
from slipway.store.address import StoreAddress
from slipway.store.objects import MissingObjectError, ObjectFacts, StoreRefusedError, UnreachableError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import AzureStore, GCSStore, S3Store

CONNECT, REQUEST = timedelta(seconds=10), timedelta(minutes=5)  # a piece at 0.2 MB/s
# 13 s of pauses in all: on GKE, the metadata server of a new pod, which gives credentials, takes some seconds to answer.
RETRIES = {"max_retries": 7, "retry_timeout": timedelta(minutes=2)}
REFUSED = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.NotSupportedError,
    exceptions.InvalidPathError,
    exceptions.UnknownConfigurationKeyError,
)
# Variables with the address of another server than the cloud's own: the first one that is set counts.
ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
BODY = re.compile(r"<\?xml|<!doctype|<html", re.IGNORECASE)  # how the content of an answer begins
# How the variables of keys, regions and endpoints begin. Those of Google are addresses and paths, or JSON.
PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_BASE_", "az": "AZURE_"}
# In the answer of a server of S3, Azure or Google; what is wrong with its certificate.
CODE = re.compile(r"<Code>(\w{1,60})</Code>|InvalidCertificate\(\s*(\w{1,60})")
# The addresses at which a cloud's machine gets its credentials: where they are asked in vain, there are none.
METADATA = ("169.254.169.254", "metadata.google.internal")
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}
# Answers for which obstore has no class, or not for every request, and that no later try changes.
FINAL = (
    *METADATA,
    "NoSuchBucket",
    "InvalidBucketName",
    "PermanentRedirect",
    "ContainerNotFound",
    "InvalidAccessKeyId",
    "NotImplemented",
    "InvalidCertificate",
    "builder error",  # an address that is none
)
STATUS = re.compile(r"status code: (\d{3})")
# Of a request that is wrong: 501, and all of 300 to 499 but a time-out, a conflict with another request, and too many of them.
RETRIED = frozenset({408, 409, 423, 425, 429})
UNKNOWN_REQUEST = (405, 501)  # of a server that does not know a request
SIGNED = timedelta(minutes=10)  # for which an address that is signed is valid; clocks differ
TIMEOUT = "RequestTimeout"  # of S3, with status 400
# An answer of a proxy, or none of it: the address that was asked, whose kind decides which proxy it was.
SILENCE = re.compile(r"(https?)://([^/\s:?]+).*(?:error sending request|status code: (?:407|50[234]))", re.DOTALL)
ALL_HOSTS = "*,0.0.0.0/0,::/0"  # for the library, whose * does not stand for addresses
KEY_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS")


@contextmanager
def as_store_errors(name: str, *, reads: bool = False) -> Iterator[None]:
    """Turn an error of obstore into the StoreError that says the same, in one line.

    Only an object that it `reads` can be missing: where a listing or a write finds nothing, the bucket or the endpoint is wrong.
    """
    try:
        yield
    except FileNotFoundError as error:
        missing = reads and not _is_final(str(error))
        raise (MissingObjectError if missing else StoreRefusedError)(_explain(name, error)) from None
    except REFUSED as error:
        raise StoreRefusedError(_explain(name, error)) from None
    except (exceptions.BaseError, OSError) as error:
        final = _is_final(str(error)) or _is_wrong(str(error))
        raise (StoreRefusedError if final else UnreachableError)(_explain(name, error)) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of pyo3, which has no module to import it from
            raise
        raise StoreRefusedError(_explain(name, error)) from None


def _is_final(said: str) -> bool:
    return any(word in said for word in FINAL)


def _status(said: str) -> int:
    """The status of an answer, 0 without one."""
    found = STATUS.search(said)
    return int(found[1]) if found else 0


def _is_wrong(said: str) -> bool:
    """Whether the status of an answer says that the request makes no sense there."""
    status = _status(said)
    return (300 <= status < 500 and status not in RETRIED and TIMEOUT not in said) or status == 501


def _explain(name: str, error: BaseException) -> str:
    """What an error means for the store of this name."""
    proxied, asked = "", SILENCE.search(str(error).partition("\n\nDebug source")[0])
    if asked and not CODE.search(str(error)) and (variable := proxy_variable(asked[1], asked[2], os.environ)):
        proxied = f". {explain_proxy_use(variable, asked[2])}"
    if any(host in str(error) for host in METADATA):
        wanted = CREDENTIALS[name.partition(":")[0]]
        return f"{name}: {wanted} are not set, and this machine has no credentials of its own: {_short(error)}{proxied}"
    return f"{name}: {_short(error)}{proxied}"


def _short(error: BaseException) -> str:
    """The first line of an error, and the code that the store gave it: obstore adds what Rust knows, and the whole answer.

    Secrets are taken out: a library shows the address that it asked, with its signature. Of a long line the middle is left out,
    which is an address: the status of the answer is at the end.
    """
    text = " ".join(str(error).partition("\n\nDebug source")[0].split())
    code = CODE.search(str(error))
    text = redact("", BODY.split(text)[0].rstrip(": "))
    text = f"{text[:180]}…{text[-120:]}" if len(text) > 300 else text
    return f"{text} ({code[1] or code[2]})" if code else text


class CloudStore:
    """A bucket, or a path in one. Credentials, region and endpoint come from the variables that each cloud's own tools read."""

    def __init__(self, address: StoreAddress, environ: Mapping[str, str] = os.environ) -> None:
        """Nothing is asked of the bucket yet. Raises StoreRefusedError for settings that make no sense."""
        self._prefix, self._name = (f"{address.path}/" if address.path else ""), str(address)
        self._deletes_signed, self._bundle = False, _bundle(environ)
        self.odd = set[str]()
        try:
            self._bucket = open_bucket(address, environ)
        except (exceptions.BaseError, OSError) as error:  # no request was sent, so a setting is wrong
            wrong = ""
            if "service account file" in str(error):
                set_by = next(
                    (name for name in KEY_FILES if environ.get(name)), "gcloud auth application-default login"
                )
                wrong = (
                    f". The file of {set_by} has to be of the type service_account or authorized_user; others, such as "
                    "external_account, cannot be used. On a machine of Google's, unset the variable to use the machine's account"
                )
            raise StoreRefusedError(f"{self._name}: {_short(error)}{wrong}") from None

    def list_objects(self, prefix: str) -> dict[str, int]:
        """As ObjectStore says."""
        with as_store_errors(self._name):
            found = self._list(f"{self._prefix}{prefix}")
            return {each["path"].removeprefix(self._prefix): each["size"] for each in found}

    def list_folders(self, prefix: str) -> list[str]:
        """As ObjectStore says."""
        whole = f"{self._prefix}{prefix}"
        with as_store_errors(self._name):
            try:
                found = obstore.list_with_delimiter(self._bucket, prefix=whole)["common_prefixes"]
            except exceptions.InvalidPathError as error:
                self._pass_over(error)
                found = [each["path"] for each in self._list_after_odd(whole)]
        names = (name.removeprefix(whole).rstrip("/").partition("/")[0] for name in found)
        return sorted({*names})

    def _list(self, prefix: str) -> list[ObjectMeta]:
        """The objects below a prefix. The library refuses a page with a key that has an empty part, `.` or `..` in it, which no
        object of ours has: then the folders are listed one by one.
        """
        try:
            return [each for chunk in obstore.list(self._bucket, prefix=prefix) for each in chunk]
        except exceptions.InvalidPathError as error:
            self._pass_over(error)
        try:
            level = obstore.list_with_delimiter(self._bucket, prefix=prefix)
        except exceptions.InvalidPathError:
            return self._list_after_odd(prefix)
        return [
            *level["objects"],
            *(each for folder in level["common_prefixes"] for each in self._list(f"{folder.rstrip('/')}/")),
        ]

    def _list_after_odd(self, prefix: str) -> list[ObjectMeta]:
        """The objects below a prefix but those whose next part is empty, `.` or `..`, which come before all that are ours."""
        chunks = obstore.list(self._bucket, prefix=prefix, offset=f"{prefix}0")
        return [each for chunk in chunks for each in chunk]

    def _pass_over(self, error: BaseException) -> None:
        self.odd.add(f"{self._name} has an object with a name that is no path, so it is skipped: {_short(error)}")

    def read(self, name: str, most: int = LARGEST) -> bytes:
        """As ObjectStore says."""
        with as_store_errors(self._name, reads=True):
            found = obstore.get(self._bucket, f"{self._prefix}{name}")
            if found.meta["size"] > most:
                self.odd.add(said := f"{name} has more than {most >> 20} MiB, so it is skipped")
                raise MissingObjectError(said)
            return bytes(found.bytes())

    def find(self, name: str) -> dict[str, ObjectFacts]:
        """As ObjectStore says."""
        with as_store_errors(self._name):
            if name:
                with suppress(FileNotFoundError):  # a folder; or there is no such bucket, which the listing says
                    return {name: _facts(obstore.head(self._bucket, f"{self._prefix}{name}"))}
            chunks = obstore.list(self._bucket, prefix=f"{self._prefix}{name}")
            return {each["path"].removeprefix(self._prefix): _facts(each) for chunk in chunks for each in chunk}

    def written(self, name: str) -> float:
        """As ObjectStore says."""
        with as_store_errors(self._name, reads=True):
            return float(obstore.head(self._bucket, f"{self._prefix}{name}")["last_modified"].timestamp())

    def read_part(self, name: str, facts: ObjectFacts, begin: int, end: int) -> bytes:
        """As ObjectStore says."""
        with as_store_errors(self._name, reads=True):
            found = obstore.get(self._bucket, f"{self._prefix}{name}", options={"range": (begin, end)})
            if _facts(found.meta) != facts:
                raise MissingObjectError(f"{name} has changed since it was listed")
            content = bytes(found.bytes())
        if len(content) != end - begin:
            raise UnreachableError(f"{self._name}: {len(content)} bytes of {name} came instead of {end - begin}")
        return content

    def write(self, name: str, content: bytes) -> None:
        """As ObjectStore says."""
        with as_store_errors(self._name):
            obstore.put(self._bucket, f"{self._prefix}{name}", content, use_multipart=False)

    def create(self, name: str, content: bytes) -> bool:
        """As ObjectStore says: `If-None-Match: *`, and `x-goog-if-generation-match: 0` at Google."""
        with as_store_errors(self._name):
            try:
                obstore.put(self._bucket, f"{self._prefix}{name}", content, mode="create", use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
        return True

    def delete(self, names: Collection[str]) -> None:
        """As ObjectStore says."""
        with as_store_errors(self._name):
            for name in names:
                path = f"{self._prefix}{name}"
                try:
                    if not self._deletes_signed:
                        obstore.delete(self._bucket, path)
                        continue
                except FileNotFoundError:
                    continue
                except exceptions.BaseError as error:
                    if _status(str(error)) not in UNKNOWN_REQUEST:
                        raise
                    self._deletes_signed = True
                self._delete_signed(path)

    def _delete_signed(self, path: str) -> None:
        """Delete an object by a request of its own: obstore sends the one for several, which not every server knows."""
        url = obstore.sign(self._bucket, "DELETE", path, SIGNED)
        tls = ssl.create_default_context(cafile=self._bundle or None)
        try:
            with urlopen(Request(url, method="DELETE"), timeout=REQUEST.total_seconds(), context=tls):  # noqa: S310  # our endpoint
                return
        except HTTPError as error:  # never the address, which is a key for its time
            error.close()
            if error.code == 404:
                return
            refused = _is_wrong(f"status code: {error.code}")
            kind = StoreRefusedError if refused else UnreachableError
            raise kind(f"{self._name}: {path} cannot be deleted: {error.code} {error.reason}") from None
        except OSError as error:
            raise UnreachableError(f"{self._name}: {path} cannot be deleted: {error}") from None


def _facts(meta: Mapping[str, Any]) -> ObjectFacts:
    """What obstore says of an object. Not every server puts its tags in quotes everywhere."""
    return ObjectFacts(meta["size"], (meta["e_tag"] or "").removeprefix("W/").strip('"'))


def _bundle(environ: Mapping[str, str]) -> str:
    """The file with the certificates of a server's authorities, empty where none is named."""
    return environ.get("AWS_CA_BUNDLE") or environ.get("SSL_CERT_FILE") or ""


def open_bucket(address: StoreAddress, environ: Mapping[str, str]) -> AzureStore | GCSStore | S3Store:
    """The bucket as obstore knows it. Raises what obstore raises, OSError, and StoreRefusedError for an endpoint that is none."""
    from obstore.store import AzureStore, GCSStore, S3Store

    _require_clean(PREFIXES[address.scheme], environ)
    client: dict[str, Any] = {"connect_timeout": CONNECT, "timeout": REQUEST}
    if bundle := _bundle(environ):
        client["root_certificate"] = Path(bundle).read_bytes()
    endpoint = read_endpoint(address.scheme, environ)
    if endpoint.startswith("http://"):
        client["allow_http"] = True
    if uses_no_proxy(environ):
        client |= {"proxy_url": "http://unused.invalid", "proxy_excludes": ALL_HOSTS}
    more: dict[str, Any] = {"client_options": client, "retry_config": RETRIES}
    if endpoint:
        more["base_url" if address.scheme == "gs" else "endpoint"] = endpoint
    if address.scheme == "gs":
        return GCSStore(address.bucket, **more)
    if address.scheme == "az":
        return AzureStore(address.bucket, **more)
    if endpoint:
        more["region"] = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return S3Store(address.bucket, **more)


def _require_clean(prefix: str, environ: Mapping[str, str]) -> None:
    """Raise StoreRefusedError for a variable with a line break or a space around it, as files of secrets often have one."""
    for name, value in environ.items():
        if name.startswith(prefix) and (value != value.strip() or "\n" in value):
            raise StoreRefusedError(f"{name} has a space or a line break in it. A value without it is needed")


def is_web_address(text: str) -> bool:
    """Whether a text is an address such as https://host:9000. obstore ends its process with an address that is none."""
    try:
        parts = urlsplit(text)
        return text.startswith(("http://", "https://")) and bool(parts.hostname) and parts.port != 0 and " " not in text
    except ValueError:
        return False


def read_endpoint(scheme: str, environ: Mapping[str, str]) -> str:
    """The address of another server than the cloud's own, empty without one. Raises StoreRefusedError where it is no address."""
    for name in ENDPOINTS[scheme]:
        if endpoint := environ.get(name):
            if {*endpoint} & {*"@?#"}:  # what it was is not repeated: it may be a password
                raise StoreRefusedError(
                    f"{name} has to be the address of a server alone, without a user, a password or parameters (?). Credentials "
                    f"are set by {CREDENTIALS[scheme]}"
                )
            if not is_web_address(endpoint):
                raise StoreRefusedError(
                    f"{name}={endpoint} has to begin with http:// or https://, and to name a server"
                )
            return endpoint.rstrip("/")
    return ""
