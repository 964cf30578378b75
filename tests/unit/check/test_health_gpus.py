"""What NVML says of a GPU becomes rows with what to do; what it does not support is no error. With a NVML that is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stand_ins import FakeNvml, NvmlError, make_card, make_devices

from slipway.check.devices import (
    GpuReading,
    find_xids,
    judge_driver,
    judge_gpu,
    judge_other_records,
    judge_xids,
    look_at_gpus,
    look_at_kernel_log,
)
from slipway.launch.rendezvous.messages import Finding
from slipway.launch.resolve.devices import Devices
from slipway.protocol.errors import UNHEALTHY

UNSUPPORTED, LOST = 3, 15


class Nvml(FakeNvml):
    """Answers health questions from `answers`, by function name; a NvmlError among them is raised, the rest is unsupported."""

    def __init__(self, *cards: Any, answers: dict[str, Any], **more: Any) -> None:
        super().__init__(*cards, **more)
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            found = self.answers.get(name.removeprefix("nvmlDeviceGet"), NvmlError(UNSUPPORTED))
            if isinstance(found, Exception):
                raise found
            return found

        return answer


def rows(devices: Devices | None = None, /, **answers: Any) -> list[Finding]:
    """The rows of a node with one GPU, without the driver's."""
    return list(look_at_gpus(devices or make_devices(1), {}, Nvml(make_card(0), answers=answers)))[1:]


def test_a_healthy_gpu_is_one_row_of_facts() -> None:
    facts = {
        "TotalEccErrors": 0, "RetiredPages": [], "RetiredPagesPendingStatus": 0, "RemappedRows": (1, 0, 0, 0),
        "CurrentClocksEventReasons": 0x1 | 0x2 | 0x4, "Temperature": 41, "PowerUsage": 71_400,
    }  # fmt: skip
    (row,) = rows(**facts)
    assert (row.what, row.level, row.code) == ("GPU 0", "ok", 0)
    assert row.found == "NVIDIA H100, 41 °C, 71 W, 0 uncorrected memory errors, 0 retired pages"


def test_a_gpu_that_supports_none_of_the_questions_is_no_error() -> None:
    (row,) = rows()
    assert (row.level, row.found) == ("ok", "NVIDIA H100")


@pytest.mark.parametrize("answer", [0, NvmlError(UNSUPPORTED), NvmlError(LOST)])
def test_a_gpu_of_which_no_errors_are_delivered_is_said(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def supported(nvml: FakeNvml, gpu: Any) -> int:
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetSupportedEventTypes", supported)
    found = [row.found for row in rows()[1:]]
    lost = isinstance(answer, NvmlError) and answer.value == LOST  # it has a row of its own
    assert found == ([] if lost else ["NVML delivers none of GPU 0: jobs do not report Xid errors"])


def test_a_library_that_lacks_the_functions_is_no_error() -> None:
    (row,) = list(look_at_gpus(make_devices(1), {}, FakeNvml(make_card(0))))[1:]
    assert row.level == "ok"


@pytest.mark.parametrize(
    ("answers", "what", "says"),
    [
        ({"TotalEccErrors": 2}, "GPU 0 memory", "2 uncorrected ECC errors"),
        ({"RemappedRows": (0, 1, 0, 1)}, "GPU 0 memory", "could not be remapped"),
        ({"TotalEccErrors": NvmlError(LOST, "GPU is lost")}, "GPU 0", "GPU is lost"),
    ],
)
def test_damage_is_an_error_of_the_node_with_what_to_do(answers: dict[str, Any], what: str, says: str) -> None:
    row = rows(**answers)[-1]
    assert (row.what, row.level, row.code) == (what, "error", UNHEALTHY)
    assert says in row.found
    assert row.advice


@pytest.mark.parametrize("answers", [{"RemappedRows": (0, 1, 1, 0)}, {"RetiredPagesPendingStatus": 1}])
def test_memory_that_waits_for_a_reset_is_a_warning(answers: dict[str, Any]) -> None:
    row = rows(**answers)[-1]
    assert (row.what, row.level) == ("GPU 0 memory", "warning")
    assert "wait for a reset" in row.found


@pytest.mark.parametrize("bit", [0x08, 0x20, 0x40, 0x80])
@pytest.mark.parametrize("function", ["CurrentClocksEventReasons", "CurrentClocksThrottleReasons"])
def test_clocks_that_the_hardware_holds_down_are_a_warning(bit: int, function: str) -> None:
    row = rows(**{function: bit | 0x1})[-1]
    assert (row.what, row.level) == ("GPU 0 clocks", "warning")


def test_several_faults_of_a_gpu_all_show() -> None:
    bad = GpuReading(3, "NVIDIA H100", uncorrected=1, rows=(True, True), reasons=0x40)
    assert [row.level for row in judge_gpu(bad)] == ["ok", "error", "error", "warning", "warning"]


def test_a_gpu_that_is_lost_does_not_hide_the_others() -> None:
    class OneLost(Nvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
            if index == 0:
                raise NvmlError(LOST, "GPU is lost")
            return self.cards[index]

    nvml = OneLost(make_card(0), make_card(1), answers={})
    found = list(look_at_gpus(make_devices(2), {}, nvml))
    assert [(row.what, row.level) for row in found[1:]] == [("GPU 0", "error"), ("GPU 1", "ok")]
    assert nvml.shut_down


@pytest.mark.parametrize(
    ("devices", "environ", "level"),
    [
        (make_devices(2), {}, "ok"),
        (Devices(), {}, "skipped"),
        (Devices(driver="550.54", reason="the driver shows none"), {}, "warning"),
        (Devices(driver="550.54", reason="CUDA_VISIBLE_DEVICES='' shows none"), {"CUDA_VISIBLE_DEVICES": ""}, "ok"),
        (Devices(problem="NVML answers: Driver/library version mismatch"), {}, "error"),
        (Devices(driver="470.256.02", reason="the driver shows none"), {}, "error"),  # CUDA 11.4
        (Devices(driver="525.60.11", reason="the driver shows none"), {}, "error"),
        (Devices(driver="525.60.13", reason="the driver shows none"), {}, "warning"),
    ],
)
def test_the_drivers_row(devices: Devices, environ: dict[str, str], level: str) -> None:
    row = judge_driver(devices, environ)
    assert row.level == level
    assert row.code == (UNHEALTHY if level == "error" else 0)
    assert ("reboot" in row.advice) == (level == "error")


def test_slices_of_one_gpu_share_its_row() -> None:
    one = make_devices(1)
    split = one._replace(gpus=one.gpus * 3)
    assert len(rows(split)) == 1


KMSG = """6,1,1000000,-;usb 1-1: new device
4,812,7200000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python, Ch 00000008
 SUBSYSTEM=pci
4,813,7300000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.
3,814,7300000001,-;NVRM: nothing else
"""


def test_xid_errors_of_hardware_are_a_warning_with_number_and_age() -> None:
    xids = find_xids(KMSG.splitlines())
    assert [xid.number for xid in xids] == [31, 79]
    row = judge_xids(xids, now=7300.0 + 7200)
    assert row.level == "warning"
    assert "1 in the kernel's log (numbers 79); the last 2.0 hours ago: Xid 79 of 0000:3b:00" in row.found
    assert "fallen off the bus" in row.found


def test_xid_errors_of_programs_are_a_fact() -> None:
    row = judge_xids(find_xids(KMSG.splitlines()[:3]), now=8000.0)
    assert row.level == "ok"
    assert "1 of programs, or corrected (numbers 31)" in row.found


# The forms of records of real machines: an A100 and a B200 with GSP, NVLink 5, NVSwitches; the values are made up.
GSP = [
    "NVRM: Xid (PCI:0000:61:00): 119, pid=123, name=python, Timeout after 6s of waiting for RPC response from GPU0 GSP! "
    "Expected function 10 (FREE) (0xc0000005 0x0).",
    "NVRM: GPU0 GSP RPC buffer contains function 76 (GSP_RM_CONTROL) and data 0x20802a02 0x8.",
    "NVRM: GPU0 RPC history (CPU -> GSP):",
    "NVRM:     entry function                   data0              data1              ts_start           ts_end",
    "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:61:00 (printing 1 of every 30).  The GPU likely needs to be reset.",
]
OFF = [
    "NVRM: Xid (PCI:0000:29:00): 79, GPU has fallen off the bus.",
    "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
]
NONFATAL = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000)"
ACTION = "NVRM: Xid (PCI:0000:29:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"


def judge(*texts: str) -> list[Finding]:
    records = [f"4,{place},{place}000000,-;{text}\n SUBSYSTEM=pci" for place, text in enumerate(texts)]
    return [judge_xids(find_xids(records), 3600.0), *judge_other_records(records, 3600.0)]


@pytest.mark.parametrize(
    ("texts", "level", "says", "advice"),
    [
        (GSP, "warning", "1 in the kernel's log (numbers 119)", "reset the GPU"),
        (OFF, "warning", "1 in the kernel's log (numbers 79)", "restart the machine"),
        (OFF[1:], "warning", "Xid 79 of 0000:29:00", "restart the machine"),
        (["NVRM: GPU at PCI:0000:1a:00 has fallen off the bus"], "warning", "Xid 79 of 0000:1a:00", "restart the machine"),
        ([OFF[0], ACTION], "warning", "(numbers 79, 154); the last 1.0 hours ago: Xid 154 of 0000:29:00", "restart the machine"),
        ([ACTION.replace("0x0 (None) to 0x2 (Node Reboot Required)", "0x1 (GPU Reset Required) to 0x0 (None)")], "ok", "", ""),
        ([NONFATAL], "ok", "1 of programs, or corrected (numbers 149)", ""),
        ([NONFATAL.replace("Nonfatal", "Fatal")], "warning", "numbers 149", "reset the GPU"),
        (["NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping"], "ok", "numbers 63", ""),
        (["NVRM: Xid (0000:af:00): 48, pid='<unknown>', name=<unknown>, Ch 00000008"], "warning", "0000:af:00", "reset"),
        (["NVRM: Xid (PCI:0000:af:00): 68, pid=7", "NVRM: Xid (PCI:0000:af:00): 109, pid=7"], "ok", "numbers 68, 109", ""),
        (["NVRM: Xid (PCI:0000:af:00): 999, pid=7"], "warning", "999", "contact support"),
    ],
)  # fmt: skip
def test_records_of_real_machines(texts: list[str], level: str, says: str, advice: str) -> None:
    (row,) = judge(*texts)
    assert (row.level, says in row.found, advice in row.advice) == (level, True, True), row


@pytest.mark.parametrize(
    ("text", "row", "level", "says"),
    [
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
         "NVSwitch errors", "ok", "1, none of them fatal"),
        ("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12 Always Fatal",
         "NVSwitch errors", "warning", "1 fatal; the last 1.0 hours ago: SXid 23001 of 0000:59:00.0: Link 12 Always Fatal"),
        ("Out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:8kB", "out of memory", "ok", "python (4242)"),
        ("Memory cgroup out of memory: Killed process 42 (pt_main_thread) total-vm:9kB", "out of memory", "ok", "(42)"),
        ("pt_main_thread[253]: segfault at 7f797fe00000 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]",
         "NCCL", "ok", "crashes in libnccl.so.2: 1; the last 1.0 hours ago: pt_main_thread (253)"),
    ],
)  # fmt: skip
def test_what_the_kernel_says_of_switches_and_processes(text: str, row: str, level: str, says: str) -> None:
    xids, found = judge(text)
    assert xids.level == "ok"
    assert (found.what, found.level) == (row, level)
    assert says in found.found


def test_the_kernels_log_is_read_where_it_may_be_and_else_skipped(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(KMSG.splitlines()[3] + "\n")
    assert [row.level for row in look_at_kernel_log(log)] == ["warning"]
    (row,) = look_at_kernel_log(tmp_path / "absent")
    assert row.level == "skipped"
    assert "dmesg" in row.found
