"""Jobs of one and two nodes that are harmed at random, and must end as if nothing had happened.

    make chaos ARGS="--minutes 20 --seed 7"           jobs 0, 1, 2 … of this seed, as many as begin within that time
    make chaos ARGS="--seed 7 --job 12"               this job once more

Any process is killed, frozen or signalled, any container killed, stopped, frozen or cut off, at moments that the seed
says; nodes that ended are started again as a scheduler would. In the end each job must have come to an undisturbed one's
snapshot, bit for bit, and left no process, container, listener or file behind. Exits 1 where one has not.
"""

import argparse
import itertools
import random
import secrets
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "launch", "image", "faults")]

from course import Course, Report  # noqa: E402
from places import WORKLOADS, is_engine_here  # noqa: E402
from plans import Plan, make_plan  # noqa: E402

PATIENCE = 600.0  # s; a rank that stands still while it saves is waited for six times --hang-seconds, and so on


class Undisturbed:
    """The runs that nothing happens to, each made when it is first asked for."""

    def __init__(self, folder: Path, engine: bool) -> None:
        self._folder, self._engine = folder, engine
        self._locks = {(workload, nodes): threading.Lock() for workload in WORKLOADS for nodes in (1, 2)}
        self._made: dict[tuple[str, int], Path] = {}

    def get(self, workload: str, nodes: int) -> Path:
        """Its run directory. RuntimeError where it does not finish."""
        key = workload, nodes
        with self._locks[key]:
            if key not in self._made:
                course = self.start(Plan(0, 0, nodes, workload, (), ()))
                if course.report.wrong:
                    raise RuntimeError(
                        f"an undisturbed job of {workload} is not as it should be: {course.report.wrong}"
                    )
                [self._made[key]] = course.nodes[0].runs
        return self._made[key]

    def start(self, plan: Plan) -> Course:
        """Run a job to its end in a folder of its own."""
        folder = self._folder / secrets.token_hex(4)
        folder.mkdir()
        course = Course(plan, folder, self._engine and plan.nodes > 1, PATIENCE)
        course.run()
        return course


def attempt(plan: Plan, undisturbed: Undisturbed) -> Report:
    """Run a job to its end and compare; its folder is kept where something was wrong."""
    wanted = undisturbed.get(plan.workload, plan.nodes)
    course = undisturbed.start(plan)
    report = course.report
    if not report.wrong:
        course.judge(wanted)
    if report.wrong:
        report.kept = course.folder
    else:
        shutil.rmtree(course.folder)
    return report


def main(words: Sequence[str]) -> int:
    """The exit code: 1 where a job was not as it should be."""
    parser = argparse.ArgumentParser(prog="make chaos", description="Do jobs end well whatever happens to them?")
    parser.add_argument("--minutes", type=float, default=20, help="no job begins after that (20)")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of the plans; any without it")
    parser.add_argument("--job", type=int, action="append", help="only the job with this number, or these numbers")
    parser.add_argument("--at-once", type=int, default=2, help="jobs side by side (2)")
    parser.add_argument("--no-engine", action="store_true", help="nodes are processes, where an engine answers, too")
    options = parser.parse_args(words)
    engine = not options.no_engine and is_engine_here()
    print(f"seed {options.seed}; the nodes of jobs of two are {'containers' if engine else 'processes'}")
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.chmod(0o755)  # a container's user goes through it
    undisturbed = Undisturbed(folder, engine)
    reports: list[Report] = []
    numbers = iter(options.job or itertools.count())
    over = threading.Event()

    def work() -> None:
        while not over.is_set() and (number := next(numbers, None)) is not None:
            reports.append(attempt(make_plan(options.seed, number, engine), undisturbed))
            print(line_of(reports[-1]), flush=True)

    with ThreadPoolExecutor(options.at_once) as pool:
        working = [pool.submit(work) for _ in range(options.at_once)]
        timer = threading.Timer(60 * options.minutes, over.set)
        timer.start()
        try:
            for one in as_completed(working):
                one.result()
        except KeyboardInterrupt:
            print("waiting for the jobs that are under way")
        finally:
            timer.cancel()
            over.set()
    print_table(sorted(reports, key=lambda report: report.plan.number), engine)
    wrong = any(report.wrong for report in reports)
    if not wrong:
        shutil.rmtree(folder)
    return int(wrong)


def line_of(report: Report) -> str:
    """A job in one line: what was done to it and when, each node's exit codes, and whether all was well."""
    plan = report.plan
    harms = "; ".join(
        f"{harm} {f'at {when:.1f} s' if when is not None else 'came too late'}"
        for harm, when in zip(plan.harms, report.done, strict=True)
    )
    codes = " | ".join(" ".join(map(str, ended)) for ended in report.codes)
    well = "well" if not report.wrong else "WRONG"
    return f"{plan.number:>4}  {plan.nodes} × {plan.workload:<6}  {report.seconds:>4.0f} s  {well:<5}  {codes:<20}  {harms}"


def print_table(reports: Sequence[Report], engine: bool) -> None:
    """A line for each job with what was wrong and how to repeat it, then one for each kind of harm."""
    print("\n job  nodes       seconds       exit codes            harms")
    done: Counter[str] = Counter()
    off: Counter[str] = Counter()
    for report in reports:
        print(line_of(report))
        for text in report.wrong:
            print(f"      {text}")
        if report.wrong:
            again = f'make chaos ARGS="--seed {report.plan.seed} --job {report.plan.number}{"" if engine else " --no-engine"}"'
            print(f"      its folder is {report.kept}; again: {again}")
        kinds = [harm.kind for harm, when in zip(report.plan.harms, report.done, strict=True) if when is not None]
        done.update(kinds)
        off.update(set(kinds) if report.wrong else ())
    print(f"\n{'harm':<20}{'done':>6}{'jobs that were wrong':>24}")
    for kind in sorted(done):
        print(f"{kind:<20}{done[kind]:>6}{off[kind]:>24}")
    wrong = sum(bool(report.wrong) for report in reports)
    starts = sum(len(ended) for report in reports for ended in report.codes)
    print(f"{len(reports)} jobs, {sum(done.values())} harms, {starts} starts of a node: {wrong} jobs were wrong")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
