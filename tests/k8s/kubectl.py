"""kubectl as far as it needs no cluster: what kustomize makes of a folder, and the folders that there are."""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from needs import find_kubectl

Document = dict[str, Any]

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"


@cache
def kustomize(folder: Path) -> str:
    """What `kubectl kustomize` prints for a folder; fails where it fails or warns."""
    program = find_kubectl()
    assert program
    done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def compose(folder: Path, *parts: Path) -> str:
    """What kustomize makes of folders of k8s/, components among them; `folder` is an empty one for the test's own file."""
    here = folder.resolve()  # kustomize takes no absolute paths
    wanted: dict[str, list[str]] = {"resources": [], "components": []}
    for part in parts:
        kind = "components" if "components" in part.parts else "resources"
        wanted[kind].append(os.path.relpath(part, here))
    (here / "kustomization.yaml").write_text(yaml.safe_dump(wanted), encoding="utf-8")
    return kustomize(here)


def read_documents(text: str) -> list[Document]:
    """The documents of a manifest, without empty ones."""
    return [document for document in yaml.safe_load_all(text) if document]


def find_folders() -> list[Path]:
    """The folders that people apply with `kubectl apply -k`."""
    return [file.parent for file in sorted(K8S.rglob("kustomization.yaml")) if "components" not in file.parts]


def find_components() -> list[Path]:
    """The folders that change others."""
    return [file.parent for file in sorted(K8S.glob("components/*/kustomization.yaml"))]
