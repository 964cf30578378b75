"""Xid errors while a job runs: what NVML delivers, and what becomes of a node's outcome."""

import itertools
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins import Events, NvmlError, event, make_card
from waiting import wait_until

from slipway.launch.attempt import gpu_events
from slipway.launch.attempt.ending import blame_gpu
from slipway.launch.attempt.gpu_events import GpuEvents, XidSeen
from slipway.launch.resolve.devices import Gpu
from slipway.launch.verdict.block import what_to_do
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.verdict import Outcome, judge
from slipway.process.machine import Clock
from slipway.protocol.causes import Sign
from slipway.protocol.xids import HARMLESS, PROGRAMS, RESTART, is_sick

GPUS = {rank: Gpu(rank - 8, "", "NVIDIA H100", (9, 0)) for rank in (8, 9)}


def threads() -> int:
    return threading.active_count()


def listen(nvml: Events, *events: Any, gpus: dict[int, Gpu] = GPUS) -> tuple[XidSeen, ...]:
    before = threads()
    listener = GpuEvents(gpus, nvml=nvml)
    listener.open()
    for one in events:
        nvml.events.put(one)
    wait_until(lambda: nvml.events.empty(), "the events are taken")
    seen = listener.close()
    assert threads() == before, "no thread is left"
    assert nvml.open == 0
    return seen


def make_nvml(**more: Any) -> Events:
    return Events(*map(make_card, range(3)), **more)


def test_an_error_names_the_gpu_and_its_rank() -> None:
    nvml = make_nvml()
    (seen,) = listen(nvml, event(nvml.cards[1], 79))
    assert str(seen) == "GPU 1 (rank 9): Xid 79, GPU has fallen off the bus"
    assert nvml.registered == ["GPU-0a0b", "GPU-1a1b"], "the third is another's"
    assert nvml.freed == 1


def test_an_instance_of_mig_is_named() -> None:
    nvml = make_nvml()
    (seen,) = listen(nvml, event(nvml.cards[0], 31, 3))
    assert str(seen) == "GPU 0, MIG instance 3 (rank 8): Xid 31, GPU memory page fault"


@pytest.mark.parametrize(
    ("handle", "text"),
    [(2048, "GPU 1 (rank 9)"), (4096, "a GPU that NVML does not name"), (None, "a GPU that NVML does not name")],
)
def test_a_gpu_that_cannot_be_asked_any_more_is_known_by_its_handle(
    monkeypatch: pytest.MonkeyPatch, handle: int | None, text: str
) -> None:
    nvml = make_nvml()
    gone = SimpleNamespace(_as_parameter_=handle)
    known = nvml.nvmlDeviceGetUUID

    def uuid(gpu: Any) -> str:
        if gpu is gone:
            raise NvmlError(15, "GPU is lost")
        return known(gpu)

    monkeypatch.setattr(nvml, "nvmlDeviceGetUUID", uuid)
    (seen,) = listen(nvml, event(gone, 79))
    assert str(seen) == f"{text}: Xid 79, GPU has fallen off the bus"


def test_without_gpus_nothing_is_started() -> None:
    nvml = make_nvml()
    assert listen(nvml, gpus={}) == ()
    assert not nvml.waited.is_set()


def test_where_events_are_not_supported_nothing_is_started() -> None:
    nvml = make_nvml(refuses=NvmlError(3, "Not Supported"))
    assert listen(nvml) == ()
    assert not nvml.waited.is_set()


def test_a_driver_that_goes_away_ends_it() -> None:
    assert listen(make_nvml(), NvmlError(1, "Uninitialized")) == ()


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"])
def test_a_driver_that_never_answers_does_not_keep_the_launcher(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(gpu_events, "STUCK", 0.0)
    nvml, answers = make_nvml(), threading.Event()
    answer = getattr(nvml, name)
    monkeypatch.setattr(nvml, name, lambda *arguments: answers.wait() and answer(*arguments))
    listener = GpuEvents(GPUS, nvml=nvml)
    listener.open()
    assert listener.close() == ()
    assert nvml.freed == 0, "it is still in use"
    answers.set()
    wait_until(lambda: not listener._thread.is_alive(), "the end of the thread")
    assert nvml.open == 0


def test_all_that_came_before_the_end_counts_in_its_order_and_nothing_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml, numbers = make_nvml(), (63, 45, 45, 79, 154)
    listener = GpuEvents(GPUS, Clock(time=itertools.count(100.0).__next__), nvml)
    wait = nvml.nvmlEventSetWait_v2

    def end_comes(*arguments: Any) -> Any:
        monkeypatch.setattr(nvml, "nvmlEventSetWait_v2", wait)
        listener._stopping.set()  # as `close` does, while this wait lasts
        for number in numbers:
            nvml.events.put(event(nvml.cards[1], number))
        raise NvmlError(10, "Timeout")

    monkeypatch.setattr(nvml, "nvmlEventSetWait_v2", end_comes)
    listener.open()
    assert [(seen.time, seen.number) for seen in listener.close()] == [*zip(itertools.count(100.0), numbers)]
    assert listener.counts == {(1, 63): 1, (1, 45): 2, (1, 79): 1, (1, 154): 1}
    assert nvml.asked == [0] * (len(numbers) + 1)


def outcome(word: str = "failed", **more: Any) -> Outcome:
    return Outcome(3, "gpu3", word, 100.0, 29, **{"cause": Cause(CauseKind.ENDED, "cuda error", 1), **more})


def xid(number: int, before: float = 2.1) -> XidSeen:
    return XidSeen(100.0 - before, number, 5, None, (29,))


@pytest.mark.parametrize("word", ["failed", "peer", "unhealthy"])
def test_a_broken_gpu_explains_an_end_and_makes_the_node_unhealthy(word: str) -> None:
    found = blame_gpu(outcome(word), [xid(31), xid(79)])
    assert (found.word, found.rank, found.time) == ("unhealthy", 29, 97.9)
    assert (
        found.evidence
        == "GPU 5 (rank 29): Xid 79, GPU has fallen off the bus, 2.1 s before; exit code 1; it said last: cuda error"
    )
    assert what_to_do(found, str) == (
        "restart the machine (not only the virtual machine); if it comes back, contact support (NVIDIA's catalog of Xid errors); "
        "the job can continue elsewhere with --resume auto"
    )
    verdict = judge([found, Outcome(0, "gpu0", "peer", 99.0)])
    assert (verdict.code(3), verdict.code(0)) == (77, 76)


@pytest.mark.parametrize("number", sorted(PROGRAMS))
def test_a_programs_own_error_is_named_and_leads_to_1(number: int) -> None:
    found = blame_gpu(outcome("unhealthy", cause=Cause(text="x", signs=(Sign.DEVICE,))), [xid(number)])
    assert found.word == "failed"
    assert found.evidence.startswith(f"GPU 5 (rank 29): Xid {number}, ")
    assert ("nvidia-smi --gpu-reset -i 5" in what_to_do(found, str)) is (number == 109)
    assert number == 109 or what_to_do(found, str) == "for its complete output, type `slipway logs --rank 29`"


def test_what_helps_is_the_catalogs_action_for_each_number() -> None:
    for number, gpu, advice in (
        (48, 5, "-i 5, or reboot; if it comes back"),
        (95, None, "-i N, or"),
        (41, 5, "start the program"),
    ):
        found = blame_gpu(outcome("peer"), [xid(number)._replace(gpu=gpu)])
        assert advice in what_to_do(found, str)
        assert ("elsewhere" in what_to_do(found, str)) is is_sick(number)


@pytest.mark.parametrize("xids", [(), (xid(63),), (xid(31, 3600.0),), (xid(79, 2 * 3600.0),), (xid(45, -5.0),)])
def test_what_does_not_explain_it_changes_nothing(xids: tuple[XidSeen, ...]) -> None:
    assert blame_gpu(outcome(), xids) == outcome()


def test_ranks_may_have_waited_for_a_broken_gpu_for_long() -> None:
    assert blame_gpu(outcome("peer"), [xid(79, 1800.0)]).word == "unhealthy"
    assert blame_gpu(outcome("failed"), [xid(74, 1800.0)]) == outcome("failed"), "the job went on after it"


@pytest.mark.parametrize("word", ["finished", "stopped", "cancelled"])
def test_a_good_end_stays_good(word: str) -> None:
    assert blame_gpu(outcome(word), [xid(79)]) == outcome(word)


def test_each_number_has_one_meaning() -> None:
    assert not PROGRAMS & HARMLESS | PROGRAMS & RESTART | HARMLESS & RESTART
    assert [number for number in range(1, 173) if is_sick(number)][-1] == 172
    assert all(map(is_sick, (46, 48, 62, 64, 74, 79, 94, 95, 119, 120, 140, 149, 999)))
