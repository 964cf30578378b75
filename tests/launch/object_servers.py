"""The real servers that tests of stores run on, by the scheme of their addresses."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import azure_server
import pytest
import s3_server


class Server(NamedTuple):
    """A kind of server: what serves it, what leads to its bucket `test`, and a key that it refuses."""

    serve: Callable[[Path], AbstractContextManager[int]]
    variables: Callable[[int], dict[str, str]]
    wrong_key: dict[str, str]


SERVERS = {
    "s3": Server(s3_server.serve_s3, s3_server.variables, {"AWS_SECRET_ACCESS_KEY": "wrong"}),
    "az": Server(azure_server.serve_azure, azure_server.variables, {"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}),
}
SCHEMES = [
    pytest.param("s3", marks=pytest.mark.needs("S3 server")),
    pytest.param("az", marks=pytest.mark.needs("Azure server")),
]
