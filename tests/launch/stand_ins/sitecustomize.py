"""Python runs this first in every process that a test starts with this folder in PYTHONPATH (stand_in_rules.py).

Where STAND_INS is set, the launcher's processes get stand-ins in place of the agent, of our workloads and of torch. In both
kinds of worker each heartbeat looks at the rules in STAND_IN_RULES, which say what a rank does at a step: it is held until the
test lets it go, or ends. In the launcher, STAND_IN_PAUSE replaces the pauses between attempts, in seconds.
A worker leaves a file in the folder STAND_IN_STARTED, with its attempt and rank: one that was forked does not come here.
"""

import os
import sys

# What the agent and the bookkeeping of our workers import of torch.
TORCH = (
    "",
    "._dynamo",
    ".distributed",
    ".distributed.launcher",
    ".distributed.launcher.api",
    ".distributed.rendezvous",
    ".distributed.run",
)
OURS = ("slipway.process.agent", "slipway.process.warm", "slipway.train")


def begin() -> None:
    """Prepare this process, where it is the agent or a worker."""
    import functools
    import json
    import signal
    import time
    from importlib.machinery import ModuleSpec
    from importlib.util import spec_from_file_location
    from pathlib import Path

    tests = Path(__file__).resolve().parent.parent
    stand_ins = {f"slipway.train.workloads.{name}": "stand_in_worker.py" for name in ("gpt", "linear")}
    stand_ins |= {f"torch{name}": "stand_in_torch.py" for name in TORCH}
    if "slipway.process.agent" in sys.orig_argv:
        stand_ins["slipway.process.agent"] = "stand_in_agent.py"

    class Finder:
        """Finds a stand-in, once: the stand-in for the agent then imports the real one."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            file, parts = stand_ins.pop(name, None), [] if name.startswith("torch") else None
            return spec_from_file_location(name, tests / file, submodule_search_locations=parts) if file else None

    def obey(rule: dict[str, str]) -> None:
        word, _, value = rule["do"].partition(" ")
        match word:
            case "exit":
                os._exit(int(value))
            case "signal":
                os.kill(os.getpid(), signal.Signals[value])
            case "raise":
                raise RuntimeError(value)
            case _:
                held = Path(rule["file"])
                held.touch()
                while held.exists():
                    time.sleep(0.01)

    def follow(rules: list[dict[str, str]]) -> None:
        from slipway.train.worker.launcher import Heartbeat

        real, done = Heartbeat.beat, []

        @functools.wraps(real)
        def beat(self: Heartbeat, phase: str, step: int, steps: int | None) -> None:
            real(self, phase, step, steps)
            place = f"attempt {os.environ['SLIPWAY_ATTEMPT']} rank {os.environ['RANK']} {phase} {step}"
            for rule in rules:
                if rule["at"] == place and rule not in done:
                    done.append(rule)
                    obey(rule)

        Heartbeat.beat = beat

    if os.environ.get("STAND_INS"):
        sys.meta_path.insert(0, Finder)
    if rules := json.loads(os.environ.get("STAND_IN_RULES", "[]")):
        follow(rules)


def replace_pauses() -> None:
    """Do so before the launcher imports them."""
    from slipway.launch.verdict import restarts

    restarts.PAUSES = (float(os.environ["STAND_IN_PAUSE"]),)


if "STAND_IN_PAUSE" in os.environ and sys.orig_argv[1:3] == ["-m", "slipway"]:
    replace_pauses()
if "STAND_IN_STARTED" in os.environ and {"LOCAL_RANK", "SLIPWAY_ATTEMPT"} <= os.environ.keys():
    open(f"{os.environ['STAND_IN_STARTED']}/{os.environ['SLIPWAY_ATTEMPT']}-{os.environ['RANK']}", "w").close()  # noqa: PTH123
if any(word.startswith(OURS) for word in sys.orig_argv):
    begin()
