"""What the launcher may load. Who may import whom is in pyproject.toml, for import-linter, and so are ruff's rules."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ALLOWED = {"slipway", "click", "dotenv"}  # dotenv only where a file is read


def loaded_by(code: str, **more: Any) -> set[str]:
    """The top-level modules that a program loads."""
    return {name.partition(".")[0] for name in modules_of(code, **more)}


def modules_of(code: str, **more: Any) -> set[str]:
    """All modules that a program loads; it prints sys.modules at its end."""
    shown = f"{code}\nimport sys\nprint(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True, **more)
    return set(process.stdout.split())


def third_party(loaded: set[str]) -> set[str]:
    """Those that are not Python's own. What an empty program loads as well is the installation's doing."""
    ours = loaded - loaded_by("") - sys.stdlib_module_names
    return {name for name in ours if not name.startswith("_sysconfigdata")}


def test_the_package_alone_loads_next_to_nothing() -> None:
    assert modules_of("import slipway") - modules_of("") == {"slipway"}


def test_the_command_line_loads_nothing_heavy() -> None:
    loaded = loaded_by("import slipway.cli.cli")
    assert third_party(loaded) == {"slipway", "click"}
    assert not {"asyncio", "torch", "numpy", "pynvml", "dotenv"} & loaded


PLAN = """
import os, sys
from slipway.cli.cli import main
sys.argv = ["slipway", "plan", "gpt"]
shown, sys.stdout = sys.stdout, open(os.devnull, "w")
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.stdout = shown
"""


@pytest.mark.parametrize("environ", [{}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}])
def test_a_plan_is_made_without_torch(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / ".env").write_text("NPROC_PER_NODE=1\n")
    environ = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **environ}
    loaded = loaded_by(PLAN, cwd=tmp_path, env=environ)
    assert third_party(loaded) - {"pynvml"} == ALLOWED  # pynvml only where there is a driver


def test_text_is_prepared_without_torch() -> None:
    modules = ("hub.fetch", "text.preparation", "text.piece")
    assert "torch" not in loaded_by("".join(f"import slipway.train.{module}\n" for module in modules))


def test_a_start_waits_for_no_command_that_was_not_typed(tmp_path: Path) -> None:
    loaded = modules_of(PLAN, cwd=tmp_path, env={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""})
    others = {f"slipway.cli.{name}" for name in ("check", "data", "logs", "reports", "results", "runs")} | {
        "slipway.render"
    }
    assert not {*others, "difflib", "importlib.metadata", "logging", "secrets", "slipway.launch.rendezvous"} & loaded


def test_what_reads_a_run_or_runs_without_a_network_loads_no_asyncio() -> None:
    modules = ("inspect.logs", "inspect.bundle", "launch.several_processes")
    assert "asyncio" not in loaded_by("".join(f"import slipway.{module}\n" for module in modules))
