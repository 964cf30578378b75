"""`slipway render k8s`, `jobset` and `trainer`: manifests, ready for `kubectl apply -f -`."""

from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

import click

from slipway.launch.resolve.sources import LIBRARIES, Sources
from slipway.options.numbers import Whole
from slipway.protocol.errors import LaunchError
from slipway.render import manifests
from slipway.render.command import checked, make_command, make_option, matching
from slipway.render.operators import make_jobset, make_trainer
from slipway.render.request import TIME_FORMS, read_time
from slipway.render.words import (
    given_settings,
    read_gpus,
    read_image,
    read_request,
    read_runs,
    read_words,
    require_enough,
)

GPUS = 4  # for each node, as base/single/job.yaml says
# Names of a LocalQueue, and quantities of memory as Kubernetes writes them.
QUEUE_NAME = matching(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", "small letters, digits, - and . are allowed, at most 63")
LABEL = matching(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?",
    "type the name of a label, such as cloud.provider.com/topology-rack",
)
QUANTITY = matching(
    r"[1-9]\d{0,8}([KMGT]i|[kMGT])", "type a number and Gi, such as 64Gi (Mi, Ti, G and so on do as well)"
)
OPTIONS = (
    make_option("--name", "NAME", "Name of the job and its run.  [default slipway]"),
    make_option("--gpus", "N", f"GPUs for each node; 0 trains on the CPU.  [default {GPUS}]", type=Whole(0, 64)),
    make_option(
        "--cpus-per-gpu", "N", f"With --gpus: cores per GPU.  [default {manifests.CPUS_PER_GPU}]", type=Whole(1, 256)
    ),
    make_option(
        "--mem-per-gpu",
        "SIZE",
        f"With --gpus: main memory per GPU, such as 64Gi.  [default {manifests.MEM_PER_GPU}]",
        callback=QUANTITY,
    ),
    make_option("--image", "IMAGE", "REGISTRY/NAME:TAG, or with a digest.  [IMAGE, default slipway:dev]"),
    make_option(
        "--with components",
        "PART",
        "A part of k8s/components: gpu (tolerations, node selection), rdma, pvc (claims for snapshots and data), "
        "metrics (a PodMonitor), "
        "tensorboard (with pvc). May be given several times.",
        type=click.Choice(manifests.COMPONENTS),
        multiple=True,
    ),
    make_option("--queue", "NAME", "Kueue's LocalQueue that admits the job.", callback=QUEUE_NAME),
    make_option(
        "--topology",
        "LABEL",
        "With --queue: the label of machines that share a switch or rack, a level of Kueue's Topology. Kueue places the pods on "
        "machines with the same value, if it can.",
        callback=LABEL,
    ),
    make_option(
        "--time",
        "TIME",
        f"Time limit, from the creation of the job's pods: {TIME_FORMS}.  [default none]",
        callback=checked(read_time),
    ),
)


def _make_file(
    name: str,
    make: Callable[[manifests.ManifestRequest, manifests.Read], list[manifests.Document]],
    words: tuple[str, ...],
    options: dict[str, Any],
    sources: Sources,
) -> bytes:
    from slipway.render.yaml_text import yaml_text  # with PyYAML, which a launcher has no need of

    asked = _read_request(words, options, sources)
    text = f"# Made by `slipway render {name}`.\n"
    if asked.secrets:
        literals = " ".join(f"--from-literal={secret}=…" for secret in asked.secrets)
        notice = f"Secrets are not written here: kubectl create secret generic {asked.secret} {literals}"
        text += f"# {notice}\n"
        click.echo(f"slipway: {notice}", err=True)  # what is printed goes through a pipe, mostly
    if (store := asked.env.get("SLIPWAY_STORE", "")) and not store.lower().startswith("file:"):
        notice = f"The pods cannot reach {store} yet: k8s/README.md has the NetworkPolicy and the Secret for it."
        text += f"# {notice}\n"
        click.echo(f"slipway: {notice}", err=True)
    return (text + yaml_text(*make(asked, read_files))).encode()


def read_files(path: str) -> list[manifests.Document]:
    """The documents of a file below k8s/."""
    import yaml

    text = resources.files("slipway").joinpath("templates/k8s", path).read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


def _read_request(words: tuple[str, ...], options: dict[str, Any], sources: Sources) -> manifests.ManifestRequest:
    """What was typed, and what the environment and .env say. Raises LaunchError, click.UsageError."""
    resume = sources.claim("SLIPWAY_RESUME")
    if not resume.is_default and resume.value == "none":
        raise LaunchError(
            f"{resume.about('SLIPWAY_RESUME')}, but a pod resumes the run that is named after its job. Omit it; "
            "a new run takes another --name."
        )
    if options["topology"] and not options["queue"]:
        raise LaunchError(
            f"--topology {options['topology']} is for Kueue, which admits a job from a queue. Add --queue NAME."
        )
    image = read_image(options["image"], sources)
    gpus = read_gpus(options["gpus"], image)
    require_enough(GPUS if gpus is None else gpus, sources)
    # What else .env gives to training, as it does everywhere: NCCL_DEBUG and the like.
    others = {name: value for name, value in sources.env_file.items() if name.startswith(LIBRARIES)}
    given = {**others, **given_settings(sources), **read_runs(sources)}
    return read_request(
        manifests.ManifestRequest,
        read_words(words, sources, here=False),
        options,
        sources,
        given,
        image=image,
        gpus=gpus,
        components=_choose_components(options["components"], gpus),
    )


def _choose_components(names: tuple[str, ...], gpus: int | None) -> tuple[str, ...]:
    """The components once each, in their order; TensorBoard shows what lies on the claims. Raises LaunchError."""
    if gpus == 0 and (unfit := {"gpu", "rdma"}.intersection(names)):
        raise LaunchError(
            f"--with {min(unfit)} is for GPUs, but this job has none (--gpus 0, or the image cpu). Leave one of them out."
        )
    chosen = {*names, *(["pvc"] if "tensorboard" in names else [])}
    return tuple(name for name in manifests.COMPONENTS if name in chosen)


COMMANDS = (
    make_command(
        "k8s",
        OPTIONS,
        partial(_make_file, "k8s", manifests.make_manifests),
        "Print manifests that train a workload or script as a plain Kubernetes Job, which needs no operator.\n\nWithout options, "
        "the output is k8s/job.yaml (explained in k8s/README.md). Settings from the command line, the environment or .env "
        "become part of them; secrets do not.",
        "--nodes 4 --image example.org/slipway:0.1.0-cuda12 gpt | kubectl apply -f -",
        elastic=True,
    ),
    make_command(
        "jobset",
        OPTIONS,
        partial(_make_file, "jobset", make_jobset),
        "Print manifests for JobSet (jobset.sigs.k8s.io), with the options of `slipway render k8s`.",
        "--nodes 4 --gpus 8 gpt --preset small | kubectl apply --server-side -f -",
    ),
    make_command(
        "trainer",
        OPTIONS,
        partial(_make_file, "trainer", make_trainer),
        "Print a ClusterTrainingRuntime and a TrainJob for Kubeflow Trainer v2, with the options of `slipway render k8s`.",
        "--nodes 4 --gpus 8 gpt --preset small | kubectl apply --server-side -f -",
    ),
)
