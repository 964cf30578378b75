"""A shell in which a pasted line runs, with a stand-in for kubectl: what it would send to a cluster is written down."""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kubectl import Document, read_documents
from security_rules import SECURITY_RULES
from templates import Pods

# It takes each word and all of stdin to its folder; a cluster is asked for nothing.
STAND_IN = """#!/bin/bash
cd "${0%/*}" && printf '%s\\0' "$@" > words && cat > stdin
"""


@dataclass(frozen=True)
class Sent:
    """What a line sent: documents to apply, or a pod to run."""

    documents: list[Document]
    pod: Document | None = None


def type_in(line: str, folder: Path) -> Sent:
    """What a pasted line sends to the cluster; it must be well. `folder` is an empty one."""
    program = folder / "kubectl"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        env={"PATH": path, "HOME": str(folder)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    command, *words = (folder / "words").read_text().split("\0")[:-1]
    if command == "run":
        return Sent([], run_pod(words))
    assert (command, words) == ("apply", ["-f", "-"])
    return Sent(read_documents((folder / "stdin").read_text()))


def run_pod(words: list[str]) -> Document:
    """The pod of `kubectl run`, as a namespace that enforces Pod Security `restricted` admits it. AssertionError where not."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("name")
    parser.add_argument("--image", required=True)
    parser.add_argument("--restart", choices=["Never"], required=True)
    parser.add_argument("--overrides", type=json.loads, required=True)
    for flag in ("--rm", "--attach"):  # it shows what the pod says, and takes it away behind it
        parser.add_argument(flag, action="store_true", required=True)
    told = parser.parse_args(words)
    own = {
        "containers": [{"name": told.name, "image": told.image}],
        "restartPolicy": told.restart,
        "hostname": told.name,
    }
    spec = own | told.overrides["spec"]  # a merge patch: lists are replaced
    found = [text for rule in SECURITY_RULES for text in rule(Pods("Pod", told.name, told.name, {"spec": spec}))]
    assert not found, f'pods "{told.name}" is forbidden: violates PodSecurity "restricted:latest": {"; ".join(found)}'
    [container] = spec["containers"]
    assert (container["name"], container["image"]) == (told.name, told.image)
    return {"metadata": {"name": told.name, "namespace": "default", "labels": {"run": told.name}}, "spec": spec}
