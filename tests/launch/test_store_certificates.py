"""A server whose certificate is of a private authority: the variables that name the authority, and what its want ends with."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure_server import serve_azure, variables
from store_contract import creates_once

from slipway.store import cloud, open_store
from slipway.store.address import parse_store
from slipway.store.objects import StoreRefusedError

pytestmark = pytest.mark.needs("Azure server")


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with another.pem and ca.pem, two authorities, and cert.pem, which the second has signed for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("certificates")
    new = ("-newkey", "rsa:2048", "-nodes")
    for name in ("another", "ca"):
        openssl(folder, "req", "-x509", *new, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    openssl(folder, "req", *new, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=server")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed_by = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl(folder, "x509", "-req", "-in", "request.pem", *signed_by, "-out", "cert.pem")
    return folder


@pytest.fixture
def served(authorities: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(cloud.RETRIES, "max_retries", 0)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with serve_azure(tmp_path, authorities / "cert.pem") as port:
        for name, value in variables(port, tls=True).items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
@pytest.mark.parametrize("authorities_in_it", [("ca",), ("another", "ca")], ids=["alone", "in a bundle"])
def test_the_authority_in_a_bundle_is_trusted(
    served: None,
    authorities: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    authorities_in_it: tuple[str, ...],
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("".join((authorities / f"{name}.pem").read_text() for name in authorities_in_it))
    monkeypatch.setenv(variable, str(bundle))
    creates_once(open_store(parse_store("az://test/certificates")))


@pytest.mark.parametrize("trusted", ["", "another.pem"], ids=["none", "another"])
def test_a_certificate_of_an_unknown_authority_is_refused_by_its_name(
    served: None, authorities: Path, monkeypatch: pytest.MonkeyPatch, trusted: str
) -> None:
    if trusted:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authorities / trusted))
    with pytest.raises(StoreRefusedError, match=r"\(UnknownIssuer\)"):
        open_store(parse_store("az://test/certificates")).list_objects("run/")
