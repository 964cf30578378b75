"""torchrun's options of its rendezvous (https://docs.pytorch.org/docs/stable/elastic/run.html), as settings of ours. Pure."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from slipway.protocol.mistake import did_you_mean

OPTIONS = ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf")
# Where MASTER_ADDR comes from if no rank is given beside it. torchrun reads PET_… where an option is absent.
ENDPOINTS = ("command line (--rdzv-endpoint)", "environment (PET_RDZV_ENDPOINT)")
BACKENDS = ("c10d", "static")  # in which the endpoint is node 0
# Of --rdzv-conf, what the numbers of seconds are here,
SECONDS = {
    "join_timeout": "SLIPWAY_RENDEZVOUS_TIMEOUT",
    "timeout": "SLIPWAY_RENDEZVOUS_TIMEOUT",
    "last_call_timeout": "SLIPWAY_ELASTIC_WINDOW",
}
# and what happens without the others.
NO_EFFECT = {
    "read_timeout": "--rendezvous-timeout S limits the waiting as a whole",
    "close_timeout": "a job ends on all nodes at once",
    "keep_alive_interval": "--heartbeat-timeout S says after which silence a node is lost",
    "keep_alive_max_attempt": "--heartbeat-timeout S says after which silence a node is lost",
    "store_type": "the launchers always meet at node 0",
    "use_libuv": "torchrun's store is started as torch does by default",
}
IS_HOST = dict.fromkeys(("1", "true", "t", "yes", "y"), True) | dict.fromkeys(("0", "false", "f", "no", "n"), False)


class Rdzv(NamedTuple):
    """What `--rdzv-…` say: `settings` by name, each with its origin; the job's `id`; whether this launcher `may_lead` as node 0
    if its rank is not given; and for several nodes `notes`, or a `mistake`, which does not matter on a single one.
    """

    settings: Mapping[str, str] = MappingProxyType({})
    origins: Mapping[str, str] = MappingProxyType({})
    id: str = ""
    may_lead: bool = True
    notes: tuple[str, ...] = ()
    mistake: str = ""


def read_rdzv(options: Mapping[str, Any], environ: Mapping[str, str] = MappingProxyType({})) -> Rdzv:
    """The options as click read them, None where they are absent; MASTER_ADDR and MASTER_PORT may be among them.

    A PyTorchJob with an `elasticPolicy` sets PET_RDZV_… instead, which count unless an option says where the nodes meet.
    """
    names = [option[2:].replace("-", "_") for option in OPTIONS]
    given = {name: options.get(name) for name in names}
    elsewhere = given["rdzv_endpoint"] or options.get("MASTER_ADDR")
    if from_pet := bool(environ.get("PET_RDZV_ENDPOINT")) and not elsewhere:
        given = {name: given[name] or environ.get(f"PET_{name.upper()}") or None for name in names}
    backend, endpoint, name, conf = given.values()
    settings: dict[str, str] = {}
    origins: dict[str, str] = {}
    notes, mistakes, may_lead = [], [], True
    if backend is not None and backend not in BACKENDS:
        mistakes.append(
            f"--rdzv-backend {backend}: its endpoint is a server of its own, and here the launchers meet at node 0. Type "
            "--rdzv-backend c10d --rdzv-endpoint HOST:29500 with the name or address of node 0."
        )
    if endpoint is not None:
        found = re.fullmatch(r"(\[[^\]]+\]|[^:]+|[^\[]*:[^\[]*:[^\[]*?)(?::([0-9]+))?", endpoint.strip())
        if found is None:
            mistakes.append(f"--rdzv-endpoint {endpoint}: the name or address of node 0 is needed, HOST or HOST:PORT.")
        for setting, value in zip(("MASTER_ADDR", "MASTER_PORT"), found.groups() if found else (), strict=False):
            typed = options.get(setting)
            if value and typed not in (None, value):
                mistakes.append(
                    f"--rdzv-endpoint {endpoint}, but {setting} is typed as {typed}. Leave one of them out."
                )
            if value:
                settings[setting], origins[setting] = value, ENDPOINTS[from_pet]
    for pair in filter(None, (conf or "").split(",")):
        key, _, value = (part.strip() for part in pair.partition("="))
        if setting := SECONDS.get(key, ""):
            settings[setting], origins[setting] = value, f"command line (--rdzv-conf {key})"
        elif key == "is_host" and value.lower() in IS_HOST:
            may_lead = IS_HOST[value.lower()]
            if may_lead:
                settings["RANK"], origins["RANK"] = "0", "command line (--rdzv-conf is_host)"
        elif key in NO_EFFECT:
            notes.append(f"--rdzv-conf {key} has no effect here: {NO_EFFECT[key]}")
        else:
            known = ("is_host", *SECONDS, *NO_EFFECT)
            mistakes.append(
                f"--rdzv-conf {pair}: {', '.join(known)} are known, as KEY=VALUE; is_host is true or false."
                f"{did_you_mean(key, known)}"
            )
    return Rdzv(settings, origins, name or "", may_lead, tuple(notes), " ".join(mistakes))
