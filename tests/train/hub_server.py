"""A stand-in for the Hub on this machine: it is_local_leader the part of its protocol that huggingface_hub uses, faults included.

hub = HubServer()
commit = hub.add("acme/tiny", {"config.json": b"{}"})
hub.fail("config.json", status=429)

It lists repositories, resolves and serves files (small ones from git, LFS ones behind a redirect, as the Hub does), and
takes commits. It offers no xet. Like the Hub it answers a repository that a caller may not see as one that is missing.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LFS = ("*.safetensors", "*.parquet", "*.bin")
KINDS = {"models": "model", "datasets": "dataset"}


@dataclass
class Repo:
    """Commits by id, each with its files, and what branches and tags mean."""

    name: str
    kind: str
    token: str | None = None  # whoever does not show it does not see the repository
    gated: bool = False  # it is seen, and not read
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Add files to what the branch holds. Returns the commit."""
        held = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        parts = [f"{path} {git_sha1(content)}" for path, content in sorted(held.items())]
        commit = hashlib.sha1("\n".join([self.kind, self.name, *parts]).encode()).hexdigest()
        self.commits[commit] = held
        self.branches[branch] = commit
        return commit

    def find(self, revision: str) -> str | None:
        """The commit that a branch, a tag or a commit means."""
        found = self.branches.get(revision) or self.tags.get(revision) or revision
        return found if found in self.commits else None


@dataclass
class Fault:
    """What goes wrong with requests whose path holds `part`; `left` counts down, None never ends."""

    part: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    corrupt: bool = False  # another byte in the middle, the length stays
    silent: bool = False  # no answer comes before the Hub is closed
    drop: int | None = None  # bytes after which the connection is closed
    methods: tuple[str, ...] = ("GET", "HEAD", "POST")
    left: int | None = None


class HubServer:
    """The server; `url` is what HF_ENDPOINT has to be."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        """`address` is one of this machine's, where the server is to be reached."""
        self.repos: dict[tuple[str, str], Repo] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []  # "GET /path"
        self.tokens: list[str | None] = []  # that came with them
        self.bodies: list[bytes] = []  # of those that give something
        self.closed = threading.Event()
        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self.url = f"http://{address}:{self._server.server_address[1]}"
        # The library follows redirects on the Hub's own host by itself, and files lie elsewhere.
        self.elsewhere = self.url.replace("127.0.0.1", "localhost")
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def add(self, name: str, files: Mapping[str, bytes], kind: str = "model", branch: str = "main", **more: Any) -> str:
        """Commit files, to a new repository where there is none; `more` is `token` or `gated`. Returns the commit."""
        return self.repos.setdefault((kind, name), Repo(name, kind, **more)).commit(files, branch)

    def fail(self, part: str, **how: Any) -> None:
        """Let requests whose path holds `part` fail; see Fault."""
        self.faults.append(Fault(part, **how))

    def fault(self, method: str, path: str) -> Fault:
        """What goes wrong with a request; nothing, mostly."""
        for fault in self.faults:
            if fault.part in path and method in fault.methods and fault.left != 0:
                fault.left = None if fault.left is None else fault.left - 1
                return fault
        return Fault("")

    def close(self) -> None:
        """Stop serving."""
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubServer:
        """Whose connection it is."""
        return self.server.hub  # type: ignore[attr-defined,no-any-return]

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer a GET or HEAD."""
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if self.starts():
            if parts[0] == "api" and parts[1] in KINDS:
                self.list(KINDS[parts[1]], parts[2:])
            elif parts[0] == "cdn":
                self.send_blob(parts[1])
            elif "resolve" in parts:
                self.resolve(parts)
            else:
                self.refuse(404, "")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """Take what is given: a repository, a question about an upload, a commit."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.bodies.append(body)
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if not self.starts():
            return
        if parts[1:] == ["repos", "create"]:
            asked = json.loads(body)
            name, kind = f"{asked['organization']}/{asked['name']}", asked.get("type", "model")
            self.hub.repos.setdefault((kind, name), Repo(name, kind)).commit({})
            self.send_json({"url": f"{self.hub.url}/{name}", "name": name, "id": name})
        elif parts[1:] == ["validate-yaml"]:
            self.send_json({"errors": [], "warnings": []})
        elif "preupload" in parts:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self.send_json({"files": files})
        elif "commit" in parts and (repo := self.repo(KINDS[parts[1]], "/".join(parts[2 : parts.index("commit")]))):
            lines = [json.loads(line) for line in body.splitlines()]
            added = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            commit = repo.commit(added, parts[-1])
            self.send_json(
                {"success": True, "commitOid": commit, "commitUrl": f"{self.hub.url}/{repo.name}/commit/{commit}"}
            )
        else:
            self.refuse(404, "")

    def starts(self) -> bool:
        """Note the request, and answer it at once where it is meant to fail."""
        self.hub.requests.append(f"{self.command} {self.path}")
        self.hub.tokens.append((self.headers.get("Authorization") or "").removeprefix("Bearer ") or None)
        self.fault = self.hub.fault(self.command, self.path)
        if self.fault.silent:
            self.hub.closed.wait()
            self.close_connection = True
            return False
        if self.fault.status:
            self.send(self.fault.status, self.fault.body, self.fault.headers)
        return not self.fault.status

    def repo(self, kind: str, name: str) -> Repo | None:
        """The repository, where there is one that this caller may see; otherwise the request is refused."""
        repo = self.hub.repos.get((kind, name))
        token = self.hub.tokens[-1]
        if repo is None or (repo.token not in (None, token) and not repo.gated):
            self.refuse(404 if token else 401, "RepoNotFound")
            return None
        return repo

    def list(self, kind: str, parts: list[str]) -> None:
        """Answer a question about repositories: which there are, what one holds, which revisions it has."""
        query = parse_qs(urlsplit(self.path).query)
        if not parts:
            owner = query.get("author", [""])[0]
            names = [repo.name for repo in self.hub.repos.values() if repo.kind == kind and not repo.token]
            self.send_json(
                [{"id": name, "_id": name, "private": False, "tags": []} for name in names if name.startswith(owner)]
            )
            return
        repo = self.repo(kind, "/".join(parts[:2]))
        if repo is None:
            return
        what, revision, *_ = [*parts[2:], "main", "main"]  # a bare name asks for what "main" holds
        commit = repo.find(revision)
        if what == "refs":
            groups = {"branches": repo.branches, "tags": repo.tags, "converts": {}}
            self.send_json(
                {
                    group: [{"name": name, "ref": name, "targetCommit": commit} for name, commit in refs.items()]
                    for group, refs in groups.items()
                }
            )
        elif commit is None:
            self.refuse(404, "RevisionNotFound")
        elif what == "tree":
            self.send_json([entry(path, content, "path", "oid") for path, content in repo.commits[commit].items()])
        else:
            files = [entry(path, content, "rfilename", "blobId") for path, content in repo.commits[commit].items()]
            self.send_json({"id": repo.name, "_id": repo.name, "sha": commit, "tags": [], "siblings": files})

    def resolve(self, parts: list[str]) -> None:
        """Serve a file, or say where it lies."""
        kind = KINDS.get(parts[0], "model")
        place = parts.index("resolve")
        repo = self.repo(kind, "/".join(parts[parts[0] in KINDS : place]))
        if repo is None:
            return
        commit, path = repo.find(parts[place + 1]), "/".join(parts[place + 2 :])
        if commit is None or path not in repo.commits[commit]:
            self.refuse(404, "EntryNotFound" if commit else "RevisionNotFound")
        elif repo.gated and self.hub.tokens[-1] != repo.token:
            self.refuse(403 if self.hub.tokens[-1] else 401, "GatedRepo")
        else:
            content, headers = repo.commits[commit][path], {"X-Repo-Commit": commit}
            if not is_lfs(path):
                self.send_content(content, {**headers, "ETag": f'"{git_sha1(content)}"'})
                return
            sha256 = hashlib.sha256(content).hexdigest()
            linked = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
            self.send(302, b"", {**headers, **linked, "Location": f"{self.hub.elsewhere}/cdn/{sha256}?name={path}"})

    def send_blob(self, sha256: str) -> None:
        """Serve an LFS file."""
        for repo in self.hub.repos.values():
            for files in repo.commits.values():
                for content in files.values():
                    if hashlib.sha256(content).hexdigest() == sha256:
                        self.send_content(content, {"ETag": f'"{sha256}"'})
                        return
        self.refuse(404, "")

    def send_content(self, content: bytes, headers: Mapping[str, str]) -> None:
        """Send a file, or the end of it that is asked for."""
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        more = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        if self.fault.corrupt:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        self.send(206 if start else 200, content[start:], {**headers, **more})

    def send_json(self, value: object) -> None:
        """Send a JSON value."""
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str) -> None:
        """Send an error as the Hub does."""
        self.send(status, b"", {"X-Error-Code": code} if code else {})

    def send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send an answer, all of it where nothing is to go wrong."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: self.fault.drop])
        if self.fault.drop is not None:
            self.close_connection = True


def entry(path: str, content: bytes, path_name: str, id_name: str) -> dict[str, Any]:
    """A file in a listing."""
    found: dict[str, Any] = {"type": "file", path_name: path, "size": len(content), id_name: git_sha1(content)}
    if is_lfs(path):
        sha256 = hashlib.sha256(content).hexdigest()
        key = "oid" if id_name == "oid" else "sha256"
        found["lfs"] = {key: sha256, "size": len(content), "pointerSize": 134}
    return found


def is_lfs(path: str) -> bool:
    """Whether the file does not lie in git itself."""
    return any(fnmatch.fnmatch(path, pattern) for pattern in LFS)


def git_sha1(content: bytes) -> str:
    """A file's id in git."""
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content)).hexdigest()
