"""Debian's Prometheus reads what the launcher of a real job answers."""

import json
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from launchers import Launcher
from needs import PROMETHEUS
from ports import take_port
from waiting import wait_until

pytestmark = pytest.mark.needs("prometheus")
Ask = Callable[[str], dict[tuple[str, ...], float]]


DASHBOARD = Path(__file__).parents[2] / "monitoring/grafana.json"
# What this job does not have: a store, a validation so soon, and for a moment replicas to compare.
OF_SOME_JOBS = ("slipway_store_", "slipway_val_loss", "slipway_replica_", "slipway_wrong_")


def queries_of_the_dashboard() -> list[str]:
    """Each query of the panels, with values for Grafana's variables."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    return [query.replace("$instance", ".*").replace("$__rate_interval", "10s") for query in queries]


def test_each_metric_of_the_dashboard_is_one_that_the_page_names() -> None:
    page = (DASHBOARD.parents[1] / "docs/monitoring.md").read_text()
    named = {name for query in queries_of_the_dashboard() for name in re.findall(r"slipway_[a-z_]+", query)}
    assert len(named) > 12
    assert {name for name in named if f"`{name}`" not in page} == set()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[Ask, int]]:
    """What Prometheus answers to a query: values by their labels; and the port at which it looks for the job."""
    port, own = take_port(), take_port()
    settings = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "slipway", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    (tmp_path / "prometheus.json").write_text(json.dumps(settings))  # which YAML contains
    words = [
        PROMETHEUS,
        f"--config.file={tmp_path / 'prometheus.json'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def ask(query: str) -> dict[tuple[str, ...], float]:
        address = f"http://127.0.0.1:{own}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with suppress(OSError), open_url(address, timeout=5) as answer:
            rows = json.load(answer)["data"]["result"]
            known = ("__name__", "instance", "job")
            return {
                tuple(value for name, value in sorted(row["metric"].items()) if name not in known): float(
                    row["value"][1]
                )
                for row in rows
            }
        return {}  # it is being started

    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            yield ask, port
        finally:
            process.kill()
            process.wait()


def test_prometheus_reads_a_job_under_way(
    prometheus: tuple[Ask, int], start: Callable[..., Launcher], tmp_path: Path
) -> None:
    ask, port = prometheus
    words = ("linear", "--steps", "1000000", "--save-every", "1000", "--log-every", "20")
    job = start(*words, NPROC_PER_NODE="2", SLIPWAY_METRICS_PORT=str(port))

    def wait_for(query: str, *labels: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        """The answer to a query, once there is one for all of these labels."""

        def told() -> str:
            return f"{query}: {ask(query)}\n{(tmp_path / 'prometheus.log').read_text()}\n{job.text}"

        def found() -> dict[tuple[str, ...], float]:
            answer = ask(query)
            return answer if answer.keys() >= {*labels} else {}

        return wait_until(found, told, every=0.2)

    assert wait_for("slipway_goodput > 0")[()] <= 1
    assert wait_for("slipway_loss")[()] > 0
    assert wait_for("slipway_step > 100", ("0",), ("1",)).keys() == {("0",), ("1",)}
    assert wait_for("slipway_own_seconds > 0", ("0",), ("1",)).keys() == {("0",), ("1",)}
    assert wait_for("slipway_snapshot_step")[()] >= 1000
    wait_for("slipway_seconds > 0", ("training",))
    assert wait_for("slipway_restarts_total == 0") == {(): 0}
    for query in queries_of_the_dashboard():
        if not query.startswith(OF_SOME_JOBS):
            wait_for(query)
    wait_for("up == 1")
    job.signal(signal.SIGINT)
    assert job.end() == 79
