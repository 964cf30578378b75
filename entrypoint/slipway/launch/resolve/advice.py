"""What to ask of whatever runs a container when something is lacking: one table, by what is lacking and by `Host.runtime`.

All of it stands here, so that nobody who has a pod or a Slurm job is told to type something behind `docker run`. Pure.
"""

from collections.abc import Mapping
from types import MappingProxyType

from slipway.launch.resolve.runtimes import runtime_of

WITHOUT = ("void", "none", "")  # as NVIDIA_VISIBLE_DEVICES: nothing of a GPU, or none of them
# {target} is a folder of the container; `host` is a machine of one's own, or a container that does not look like one, and as
# `docker` where it is left out.
# Docker makes a folder that is not there, but as root; and files that the container writes shall be the caller's.
KEEP = '--user "$(id -u):0" -v "$PWD/runs:{target}" to docker run'

ADVICE: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "gpus": {
            "docker": "add --gpus all to docker run",
            "compose": "leave compose/cpu.yaml out of COMPOSE_FILE",
            "kubernetes": "add nvidia.com/gpu to the pod's limits; if it is there already, add runtimeClassName: nvidia to the "
            "pod, because NVIDIA's runtime is not the default on that machine",
            "slurm": "ask Slurm for them with --gpus-per-node=N",
            "host": "install NVIDIA's driver, so that nvidia-smi lists them",
        },
        "shared memory": {
            "docker": "add --shm-size 1g to docker run",
            "compose": "set shm_size: 1g in the compose file",
            "kubernetes": "mount an emptyDir with medium: Memory at /dev/shm",
            "slurm": "mount -o remount,size=1g /dev/shm",
            "host": "mount -o remount,size=1g /dev/shm",
        },
        "results": {
            "docker": "type mkdir -p runs, and add " + KEEP,
            "kubernetes": "mount a PersistentVolumeClaim at {target} (k8s/components/pvc)",
            "slurm": 'type mkdir -p runs, and add --container-mounts="$PWD/runs:{target}" to srun',
        },
        # {target} is a folder that is free: unlike --resume none, that helps whatever named the finished run.
        "another run": {
            "docker": "with --run-dir {target} in a new container",
            "compose": "with SLIPWAY_RUN_DIR={target} docker compose up, or add --run-dir {target} behind the service's name in "
            "docker compose run",
            "kubernetes": "as a Job of another name with --run-dir {target}",
            "slurm": "as a new job with --run-dir {target}",
            "host": "with --run-dir {target}",
        },
        "kept results": {
            "docker": 'add -v "$PWD/runs:{target}" to docker run',
            "kubernetes": "mount the PersistentVolumeClaim of the runs at {target}",
            "slurm": 'add --container-mounts="$PWD/runs:{target}" to srun',
        },
        "files": {
            "docker": 'add -v "$PWD:{target}" to docker run',
            "kubernetes": "mount a volume with them at {target}",
            "slurm": 'add --container-mounts="$PWD:{target}" to srun',
        },
        "owner": {
            "docker": 'add --user "$(id -u):0" to docker run',
            "kubernetes": "set fsGroup in the pod's securityContext (k8s/components/pvc)",
            "slurm": "submit the job as that user",
        },
        "working directory": {
            "docker": 'add -v "$PWD:{target}" to docker run, or -w /tmp with the full path of the script',
            "kubernetes": "set workingDir to a volume that can be written, and give the full path of the script",
            "slurm": "start it in a folder that can be written (in a container --container-workdir=DIR of srun)",
            "host": "start it in a folder that can be written",
        },
        "results in a read-only mount": {
            "docker": "mount it without :ro",
            "kubernetes": "mount an emptyDir or a PersistentVolumeClaim at {target}, without readOnly: true",
            "slurm": "leave :ro out of --container-mounts",
        },
        "files in a read-only mount": {
            "docker": "mount {target} without :ro",
            "kubernetes": "let it write to the folder that SLIPWAY_RUN_DIR names, or mount an emptyDir for what it writes (the "
            "volume of a ConfigMap is always read-only)",
            "slurm": "let it write to the folder that SLIPWAY_RUN_DIR names, or leave :ro out of --container-mounts",
        },
        "temporary files": {
            "docker": "add --tmpfs /tmp:exec,mode=1777 to docker run",
            "compose": 'set tmpfs: ["/tmp:exec,mode=1777"] in the compose file',
            "kubernetes": "mount an emptyDir at /tmp",
            "slurm": "set TMPDIR to a folder where programs may be started",
            "host": "set TMPDIR to a folder where programs may be started",
        },
        "another disk": {
            "docker": "mount a folder of another one there (-v of docker run)",
            "compose": "put the volume checkpoints of the compose file on another one",
            "kubernetes": "use a larger PersistentVolumeClaim",
            "slurm": "use another one (--runs DIR)",
            "host": "use another one (--runs DIR)",
        },
        # {target} is the image.
        "package": {
            "docker": "build an image that has the package, and start that one: printf 'FROM {target}\\nUSER root\\n"
            "RUN pip install PACKAGE\\nUSER 1000:0\\n' | docker build --tag mine -; then name mine as the image to start",
            "kubernetes": "build an image that has the package (images/extend), and name that one in the manifest",
            "slurm": "build an image that has the package (images/extend), or install it into the environment of the job",
            "host": "install the package for this Python (pip install PACKAGE)",
        },
        "cores": {
            "docker": "--cpus of docker run",
            "compose": "cpus in the compose file",
            "kubernetes": "cpu in the pod's limits",
            "slurm": "--cpus-per-task",
            "host": "the machine, or taskset",
        },
        "open files": {
            "docker": "--ulimit nofile=65536:65536 of docker run",
            "compose": "ulimits: {{nofile: 65536}} in the compose file",
            "kubernetes": "LimitNOFILE of containerd on that machine",
            "slurm": "LimitNOFILE of slurmd",
            "host": "/etc/security/limits.conf",
        },
        "processes": {
            "docker": "--pids-limit of docker run",
            "compose": "pids_limit in the compose file",
            "kubernetes": "podPidsLimit of the kubelet",
            "slurm": "TasksMax of slurmd",
            "host": "ulimit -u, or TasksMax of systemd",
        },
        "locked memory": {
            "docker": "add --ulimit memlock=-1 to docker run",
            "compose": "set ulimits: {{memlock: -1}} in the compose file",
            "kubernetes": "set LimitMEMLOCK=infinity for containerd on that machine",
            "slurm": "set LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
            "host": "raise memlock in /etc/security/limits.conf",
        },
        "InfiniBand": {
            "docker": "add --device /dev/infiniband --ulimit memlock=-1 to docker run, and --network host",
            "compose": "set devices, ulimits: {{memlock: -1}} and network_mode: host in the compose file",
            "kubernetes": "ask for the cluster's RDMA resource (k8s/components/rdma)",
            "slurm": "have enroot show it: its hook wants MELLANOX_VISIBLE_DEVICES=all in the job's environment",
            "host": "load the kernel's module ib_uverbs (modprobe ib_uverbs)",
        },
        "image's name": {
            "docker": "pass -e IMAGE=NAME to docker run",
            "kubernetes": "set IMAGE in the pod's env",
            "slurm": "export IMAGE=NAME before sbatch or srun",
        },
        "MASTER_ADDR": {
            "docker": "add -e MASTER_ADDR=HOST to docker run, MASTER_ADDR=HOST to .env, or --master-addr HOST",
            "kubernetes": "set MASTER_ADDR in the pod's env to the name of node 0's pod behind a headless Service",
            "slurm": "start it with srun, or add --master-addr HOST",
        },
    }
)


def means_cpu(environ: Mapping[str, str], processes: str) -> bool:
    """Whether somebody chose to train without GPUs, and needs no advice on how to have some. `processes`: NPROC_PER_NODE."""
    return processes == "cpu" or "CUDA_VISIBLE_DEVICES" in environ or environ.get("NVIDIA_VISIBLE_DEVICES") in WITHOUT


def advise(lacking: str, runtime: str, target: str = "") -> str:
    """What helps where something is `lacking` (a key of ADVICE), as the end of a sentence."""
    dockers = ADVICE[lacking]["docker"].replace("docker run", runtime_of(runtime).command)
    return ADVICE[lacking].get(runtime, dockers).format(target=target)
