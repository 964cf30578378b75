"""The click of a user's own image or environment may be older than ours, and its scripts import Slipway with that one."""

import subprocess
import sys

OLDER = (
    "import click; click.ParamType.__class_getitem__ = None"  # as before click 8.4, where nothing can be named there
)
MODULES = "slipway.options.allreduce, slipway.options.common, slipway.options.dataset, slipway.options.vision"


def test_the_options_can_be_imported_with_a_click_that_names_no_result() -> None:
    done = subprocess.run([sys.executable, "-c", f"{OLDER}; import {MODULES}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
