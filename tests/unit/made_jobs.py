"""Jobs that are not started, and attempts that failed."""

from collections.abc import Mapping
from typing import Any

from stand_ins import make_devices, make_host, make_sources, plan_for

from slipway.launch.resolve.job_spec import Job
from slipway.launch.verdict.cause import said
from slipway.launch.verdict.restarts import Try
from slipway.launch.verdict.verdict import Outcome


def make_job(*words: str, environ: Mapping[str, str] | None = None) -> Job:
    environ = environ or {}
    return Job(
        plan_for(words or ("linear",), environ), make_sources(environ), make_devices(), environ, None, make_host()
    )


def tried(number: int = 1, word: str = "failed", **more: Any) -> Try:
    outcome = Outcome(0, "n0", word, 1000.0 + number, rank=1, cause=said("ValueError: bad"))
    return Try(number, outcome, **more)
