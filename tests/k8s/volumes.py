"""What kubelet makes of a pod's volumes: Docker volumes and tmpfs."""

from contextlib import ExitStack

from containers import IMAGE, docker, fresh_name
from kubectl import Document

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def amount(quantity: str | int | float) -> float:
    """A quantity of Kubernetes as a number: `500m` is 0.5, `1Gi` 1,073,741,824."""
    text = str(quantity)
    if text.endswith("m"):
        return float(text[:-1]) / 1000
    number = text.rstrip("KMGik")
    return float(number) * UNITS[text[len(number) :]]


def fresh_volume(undo: ExitStack) -> str:
    """A Docker volume that goes when the test ends."""
    name = fresh_name()
    docker("volume", "create", name)
    undo.callback(docker, "volume", "rm", name)
    return name


class Volumes:
    """The volumes of one pod. Those of an emptyDir are fresh; `claims` are the volumes of the claims by their names."""

    def __init__(self, spec: Document, claims: dict[str, str], undo: ExitStack) -> None:
        """Make them as kubelet does: an emptyDir is open to all, and every volume belongs to the fsGroup if there is one."""
        self._memory: dict[str, int] = {}
        self._disks: dict[str, str] = {}
        acts = []
        for volume in spec.get("volumes", []):
            name = volume["name"]
            if claim := volume.get("persistentVolumeClaim"):
                self._disks[name] = claims[claim["claimName"]]
            elif (empty := volume["emptyDir"]).get("medium") == "Memory":
                self._memory[name] = int(amount(empty["sizeLimit"]))
            else:
                assert not empty, f"volume {name}: an emptyDir on disk with {empty} is not rehearsed"
                self._disks[name] = fresh_volume(undo)
                acts.append(f"chmod 0777 /volumes/{name}")
        if group := spec.get("securityContext", {}).get("fsGroup"):  # they begin empty: their root is all there is
            acts += [f"chgrp {group} /volumes/{name}; chmod g+rwxs /volumes/{name}" for name in self._disks]
        if acts:
            mounts = [f"--volume={volume}:/volumes/{name}" for name, volume in self._disks.items()]
            docker("run", "--rm", "--user=0", *mounts, "--entrypoint=bash", IMAGE, "-ec", "; ".join(acts))

    def flags(self, container: Document) -> list[str]:
        """Docker's flags for the mounts of a container."""
        flags = []
        for mount in container.get("volumeMounts", []):
            name, path = mount["name"], mount["mountPath"]
            if name in self._memory:
                flags += ["--tmpfs", f"{path}:rw,exec,nosuid,nodev,mode=0777,size={self._memory[name]}"]
            else:  # what the image has at that place is not copied, as Docker would for a new volume
                only = ",readonly" if mount.get("readOnly") else ""
                flags += ["--mount", f"type=volume,src={self._disks[name]},dst={path},volume-nocopy{only}"]
        return flags
