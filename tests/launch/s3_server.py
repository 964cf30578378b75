"""A real server of S3 (SeaweedFS) with one bucket, `test`."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import needs
from ports import take_ports
from waiting import wait_until

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret-secret", "AWS_REGION": "us-east-1"}
IDENTITY = (
    '{"identities": [{"name": "test", "credentials": [{"accessKey": "key", "secretKey": "secret-secret"}],'
    ' "actions": ["Admin", "Read", "Write", "List"]}]}'
)


def answers(port: int) -> bool:
    """Whether a server accepts connections."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def serve_s3(folder: Path, volumes: int = 20) -> Iterator[int]:
    """The port of a server whose files are in a folder, while it runs. It has room for so many `volumes` of 64 MB, and what is
    deleted keeps its room for a while.
    """
    (folder / "data").mkdir()
    (folder / "s3.json").write_text(IDENTITY)
    ports = {name: take_ports(1) for name in ("master", "volume", "filer", "s3")}
    grpc = {f"{name}.grpc": take_ports(1) for name in ports}
    words = [
        f"-{name.removesuffix('.grpc')}.port{'.grpc' if name.endswith('.grpc') else ''}={port}"
        for name, port in (ports | grpc).items()
    ]
    command = [
        str(needs.SEAWEEDFS), "server", f"-dir={folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3",
        f"-s3.config={folder}/s3.json", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-volume.max={volumes}", "-master.volumeSizeLimitMB=64", *words,
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        shell = [str(needs.SEAWEEDFS), "shell", f"-master=127.0.0.1:{ports['master']}.{grpc['master.grpc']}"]

        def has_bucket() -> bool:
            assert server.poll() is None, (folder / "log").read_text()
            made = subprocess.run(shell, input=b"s3.bucket.create -name test\n", capture_output=True, timeout=60)
            return b"created bucket" in made.stdout

        try:
            wait_until(lambda: answers(ports["s3"]), lambda: (folder / "log").read_text()[-2000:])
            wait_until(has_bucket, lambda: (folder / "log").read_text()[-2000:])
            yield ports["s3"]
        finally:
            server.kill()
            server.wait()


def variables(port: int) -> dict[str, str]:
    """What a client needs to reach a server at a port of this machine."""
    return {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
