"""Options as torchrun, accelerate, transformers, DeepSpeed, Lightning and nanoGPT call them, and what they are called here.

If a user types one, the error names our option and shows the whole line with it. A guess is never started.
"""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import click

from slipway.cli.launching import hyphens, launcher_options
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.resolve.settings import SETTINGS
from slipway.options.numbers import example
from slipway.protocol.mistake import nearest

# Ours, by theirs. Where there are several the first counts that the command has; one with a value takes none from the line.
_THEIRS: Mapping[str, str] = {
    "--nproc-per-node": "nproc gpus num-gpus ngpus n-gpus gpu devices num-devices gpus-per-node num-processes nproc-per-machine "
    "device accelerator ntasks-per-node processes procs processes-per-node workers-per-node",
    "--nproc-per-node cpu": "cpu use-cpu no-cuda",
    "--nnodes": "num-nodes nodes num-machines machines nnode n-nodes world-size",
    "--node-rank": "rank machine-rank noderank",
    "--master-addr": "master master-address main-process-ip host master-ip head",
    "--master-port": "port main-process-port",
    "--run-dir": "output-dir out-dir out output outdir save-dir logdir checkpoint-dir ckpt-dir default-root-dir "
    "project-dir",
    "--resume": "resume-from-checkpoint resume-from checkpoint ckpt ckpt-path load load-checkpoint init-from restore",
    "--max-restarts": "restarts retries max-retries",
    "--steps --iterations": "step steps max-steps num-steps max-train-steps train-steps iters max-iters iterations "
    "num-iterations n-steps total-steps max-step",
    "--epochs --steps --iterations": "epoch epochs max-epochs num-epochs num-train-epochs n-epochs",
    "--batch-size": "batch bs batchsize train-batch-size global-batch-size total-batch-size",
    "--batch-size-per-process": "per-device-train-batch-size per-gpu-train-batch-size micro-batch-size device-batch-size "
    "batch-size-per-gpu per-device-batch-size train-micro-batch-size-per-gpu",
    "--accumulate": "gradient-accumulation-steps grad-accum accumulation-steps accumulate-grad-batches grad-accumulation accum",
    "--lr": "learning-rate learningrate base-lr max-lr",
    "--warmup --warmup-iterations": "warmup-steps num-warmup-steps warmup-iters lr-warmup-steps",
    "--schedule": "lr-scheduler-type lr-scheduler scheduler lr-schedule",
    "--clip": "max-grad-norm grad-clip gradient-clip-val clip-grad clip-grad-norm gradient-clipping grad-norm-clip",
    "--weight-decay": "wd decay l2",
    "--precision --dtype": "mixed-precision dtype amp-dtype torch-dtype",
    "--precision bf16 --dtype bf16": "bf16 bfloat16",
    "--precision fp16 --dtype fp16": "fp16 half amp float16",
    "--precision fp32 --dtype fp32": "fp32 float32",
    "--compile": "torch-compile use-compile",
    "--seed": "random-seed manual-seed",
    "--save-every": "save-steps save-interval checkpoint-every save-freq checkpointing-steps ckpt-interval",
    "--keep": "save-total-limit keep-last max-checkpoints checkpoints-total-limit",
    "--workers": "num-workers dataloader-num-workers data-workers",
    "--eval-every": "eval-steps eval-interval val-interval val-check-interval evaluate-every",
    "--log-every": "logging-steps log-interval log-every-n-steps print-freq",
    "--dataset": "data dataset-name data-dir data-path train-file train-data input train-data-path",
    "--column": "text-column text-key",
    "--tokenizer": "tokenizer-name tokenizer-path",
    "--model --preset": "model-name-or-path model-name pretrained-model arch architecture model",
    "--preset": "size model-size model-type",
    "--context": "block-size seq-len sequence-length seq-length max-seq-length max-seq-len context-length n-ctx",
    "--layers": "n-layer num-layers n-layers num-hidden-layers depth",
    "--heads": "n-head num-heads n-heads num-attention-heads",
    "--embed": "n-embd hidden-size d-model hidden-dim dim embed-dim",
    "--checkpoint-activations": "gradient-checkpointing activation-checkpointing grad-checkpointing",
    "--stages": "pipeline-parallel-size pp pipeline-stages",
    "--export": "save-model save-pretrained export-dir",
    "--find-unused-parameters": "ddp-find-unused-parameters",
    "--bucket-mb": "bucket-cap-mb ddp-bucket-cap-mb",
}  # fmt: skip
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    f"--{theirs}": tuple(re.split(" (?=--)", ours)) for ours, names in _THEIRS.items() for theirs in names.split()
}
DOCKERS = (
    *("--env", "--gpus", "--ipc", "--name", "--net", "--network", "--rm", "--shm-size", "--stop-timeout", "--ulimit"),
    *("--user", "--volume", "-e", "-i", "-it", "-t", "-u", "-v"),
)
# Our commands, by what others call them, at the first place and after `slipway render`.
COMMANDS = {
    **dict.fromkeys(("kubernetes", "kube", "kubectl", "k8s", "manifest", "manifests"), "render k8s"),
    **dict.fromkeys(("slurm", "sbatch", "srun", "batch"), "render slurm"),
    **dict.fromkeys(("compose", "docker-compose", "docker"), "render compose"),
    **dict.fromkeys(("trainer", "trainjob", "kubeflow", "pytorchjob"), "render trainer"),
    "jobset": "render jobset",
    **dict.fromkeys(("list", "ls", "ps", "jobs"), "runs"),
    **dict.fromkeys(("launch", "start", "submit", "exec", "train"), "run"),
    **dict.fromkeys(("cancel", "kill", "abort"), "stop"),
    **dict.fromkeys(("watch", "top"), "status --watch"),
    **dict.fromkeys(("doctor", "health", "diagnose"), "check"),
    **dict.fromkeys(("evaluate", "test", "validate"), "eval"),
    **dict.fromkeys(("generate", "predict"), "sample"),
    **dict.fromkeys(("prepare", "tokenize"), "data prepare"),
    **dict.fromkeys(("fetch", "download"), "data fetch"),
    "help": "--help",
    "version": "--version",
}
NEAR = 0.85  # how much of two names is equal where one may be the other, misspelt
# Ours, by theirs: of docker's --gpus, and of --device.
VALUES = {"--nproc-per-node": {"all": "auto", "auto": "auto", "cuda": "gpu", "gpu": "gpu", "cpu": "cpu"}}


def explain(error: click.UsageError, words: Sequence[str], environ: Mapping[str, str]) -> click.UsageError:
    """The same error with what is meant, and what to type; `words` are those behind `slipway`."""
    command = error.ctx.command if error.ctx else None
    if isinstance(error, click.BadOptionUsage) and command:
        option = next((one for one in command.params if error.option_name in (*one.opts, *one.secondary_opts)), None)
        return click.BadOptionUsage(error.option_name, f"{error.message}{example(option)}", error.ctx)
    if isinstance(error, click.BadParameter) and error.param and isinstance(error.param.type, click.Choice):
        return _nearest_choice(error, error.param, error.param.type)
    if isinstance(command, click.Group) and (found := re.match(r"No such command '(.+?)'", error.message)):
        return _nearest_command(error, found[1], command)
    if not isinstance(error, click.NoSuchOption):
        return error
    if isinstance(command, click.Group):
        return _begin_with_command(error, words, environ)
    known = {name for option in command.params for name in option.opts} if command else set()
    if command and command.name in WORKLOADS:
        known |= {name for option in launcher_options() for name in option.opts}
    ours = meant(error.option_name, known)
    likely = _likely(error, command.params if command else ())
    error = click.NoSuchOption(error.option_name, error.message, likely, error.ctx)
    if not ours and not error.possibilities:  # theirs, misspelt; click has told of ours
        ours = next((meant(near, known) for near in get_close_matches(error.option_name, SYNONYMS, 1, NEAR)), "")
    if not ours:
        return error
    line = _replaced(words, error.option_name, ours)
    told = f" Type: {shlex.join(['slipway', *line])}" if line else ""
    return click.NoSuchOption(
        error.option_name, f"No such option '{error.option_name}': it is {ours} here.{told}", ctx=error.ctx
    )


def _likely(error: click.NoSuchOption, options: Collection[click.Parameter]) -> list[str]:
    """Which of the options that click suggests may be meant: the dashes that all have in common make no name near."""
    hidden = {name for option in options if getattr(option, "hidden", False) for name in option.opts}
    name = error.option_name.strip("-")
    names = [one for one in error.possibilities or () if one not in hidden]
    return [one for one in names if get_close_matches(name, [one.strip("-")])]


def _nearest_choice(error: click.BadParameter, param: click.Parameter, choice: click.Choice[Any]) -> click.BadParameter:
    """The same error with the value that may be meant: `medium` is a part of `gpt2-medium`."""
    found, choices = re.match(r"'(.*?)' is not one of", error.message), [str(one) for one in choice.choices]
    if not found:
        return error
    typed = found[1].lower()
    part = next((one for one in choices if typed and (typed in one.lower() or one.lower() in typed)), "")
    near = next(iter(get_close_matches(typed, choices, 1, 0.5)), part)
    before = "" if isinstance(param, click.Argument) else f"{param.opts[0]} "
    told = f" Did you mean {before}{near}?" if near else ""
    return click.BadParameter(f"{error.message.rstrip('.')}.{told}", error.ctx, param, error.param_hint)


def _nearest_command(error: click.UsageError, name: str, group: click.Group) -> click.UsageError:
    """The same error with the command that may be meant, or with all that there are."""
    before = (error.ctx.command_path if error.ctx else "slipway").split()[1:]
    known = sorted(group.commands)
    theirs = next(iter(get_close_matches(name.lower(), COMMANDS, 1, NEAR)), "")
    elsewhere = COMMANDS.get(theirs, "").split()
    near = elsewhere[-1] if elsewhere[:-1] == before else next(iter(get_close_matches(name, known, 1)), "")
    told = f"Did you mean {shlex.join(['slipway', *before, near])}?" if near else f"Available are {', '.join(known)}."
    return click.UsageError(f"No such command '{name}'. {told}", error.ctx)


def meant(name: str, known: Collection[str]) -> str:
    """What an option of others is called here, with its value where that is fixed; empty where nobody knows."""
    return next((ours for ours in SYNONYMS.get(name, ()) if ours.partition(" ")[0] in known), "")


def _begin_with_command(
    error: click.NoSuchOption, words: Sequence[str], environ: Mapping[str, str]
) -> click.NoSuchOption:
    """Options stand behind a command: `run` for the launcher's, a workload for those of a training. Docker's stand before all."""
    from slipway.options import WORKLOADS as KINDS  # torch-free
    from slipway.options.command import click_command

    name = error.option_name
    if environ.get("SLIPWAY_IMAGE") and name in DOCKERS:
        text = (
            f"'{name}' is an option of docker, and belongs before the image's name. Type: docker run {name} … IMAGE …"
        )
        return click.NoSuchOption(name, text, ctx=error.ctx)
    own = {option for one in click_command(KINDS["gpt"]).params for option in one.opts}
    launchers = {option for one in launcher_options() for option in one.opts}
    ours = name if name in own | launchers else meant(name, own | launchers)
    if not ours:
        return error
    line = words if ours == name else _replaced(words, name, ours)
    if not line:
        return error
    first = "gpt" if ours.partition(" ")[0] in own else "run"
    text = f"'{name}' must come after a command or a workload. Type: {shlex.join(['slipway', first, *line])}"
    return click.NoSuchOption(name, text, ctx=error.ctx)


def _replaced(words: Sequence[str], theirs: str, ours: str) -> list[str]:
    """The words with an option's name replaced, and its value where ours says that; none where it does not stand there."""
    place = next((n for n, word in enumerate(words) if hyphens(word.partition("=")[0]) == theirs), None)
    if place is None:
        return []
    _, equals, value = words[place].partition("=")
    name, *fixed = ours.split()
    behind = list(words[place + 1 :])
    if fixed:
        return [*words[:place], name, *fixed, *(behind[1:] if behind[:1] in (["true"], ["True"], ["1"]) else behind)]
    given, behind = ([value], behind) if equals else (behind[:1], behind[1:])
    values = [_value(name, word) for word in given]
    if not all(map(partial(_is_taken, name), values)):
        return []
    return [*words[:place], *([f"{name}={values[0]}"] if equals else [name, *values]), *behind]


def _value(name: str, theirs: str) -> str:
    """The value of an option of ours that another one's is, also misspelt: `cuda:0` and `cud` are `gpu`."""
    ours = VALUES.get(name, {})
    near = "" if theirs[:1].isdigit() else nearest(theirs.lower().partition(":")[0], ours)
    return ours.get(near, theirs)


def _is_taken(name: str, value: str) -> bool:
    """Whether an option of ours has this value."""
    try:
        for setting in (one for one in SETTINGS if one.option == name):
            setting.parse(value)
    except ValueError:
        return False
    return True
