"""What `slipway render` promises for every scheduler alike: what cannot work is refused, and every option is described."""

from __future__ import annotations

import click
import pytest
from stand_ins import Slipway

from slipway.options import WORKLOADS, parse
from slipway.render import render as render_group

COMMANDS = sorted(render_group.commands)
REFUSED = [
    (["--nodes", "0"], {}, 78, "1 to 65536"),
    (["--node-rank", "1"], {}, 78, "Omit it"),
    (["gpt", "--node-rank", "1"], {}, 78, "Omit it"),
    ([], {"RANK": "0"}, 78, "RANK=0 (from the environment)"),
    ([], {"MASTER_ADDR": "a"}, 78, "MASTER_ADDR=a"),
    (["--standalone"], {}, 78, "--nodes 1"),
    (["--rdzv-id", "x"], {}, 78, "--run-dir"),
    (["--gpus", "a100:2"], {}, 2, "--gpus"),
    (["--gpus", "2", "--nproc-per-node", "4"], {}, 78, "--oversubscribe"),
    (["--grace-seconds", "soon"], {}, 78, "--grace-seconds soon"),
    (["--env-file", "absent.env"], {}, 78, "no such file"),
    (["lniear"], {}, 78, "Did you mean linear?"),
    (["-m"], {}, 78, "name of a module"),
    (["gpt", "--preset", "huge"], {}, 2, "--preset"),
    (["gpt", "--preet", "small"], {}, 2, "--preset"),
]  # fmt: skip


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize(("words", "environ", "code", "says"), REFUSED, ids=[repr(row[0] or row[1]) for row in REFUSED])
def test_what_cannot_work_is_refused(
    slipway: Slipway, kind: str, words: list[str], environ: dict[str, str], code: int, says: str
) -> None:
    answer = slipway("render", kind, *words, **environ)
    assert (answer.code, answer.out) == (code, ""), answer.err
    assert says in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_option_is_described_and_none_is_one_of_a_workload(slipway: Slipway, kind: str) -> None:
    command = render_group.commands[kind]
    options = [option for option in command.params if isinstance(option, click.Option)]
    text = " ".join(slipway("render", kind, "--help").out.split())
    shown = [option for option in options if not option.hidden]
    assert [option.name for option in shown if not option.help or option.opts[0] not in text] == []
    theirs = {f"--{name.replace('_', '-')}" for each in WORKLOADS.values() for name in parse(each, []).values()}
    assert {name for option in options for name in option.opts} & theirs == set()
