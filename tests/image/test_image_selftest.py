"""`slipway selftest` in the image, under every lock: as any user, read-only, without network and with 64 MB of /dev/shm."""

from __future__ import annotations

import json

from containers import Containers

LOCKED = (
    "--user 12345:0 --read-only --tmpfs /tmp:exec,mode=1777 --cap-drop ALL --security-opt no-new-privileges "
    "--network none"
)


def test_rows_that_need_no_gpu_are_ok_and_the_others_say_what_they_lack(container: Containers) -> None:
    job = container(f"{LOCKED} IMG selftest --json --only node,products,triton,compile,exception")
    report = json.loads(job.stdout)
    assert report["machine"]["image"], report
    rows = {row["what"]: (row["level"], row["found"], row["advice"]) for row in report["rows"]}
    assert {what: level for what, (level, _, _) in rows.items()} == {
        "node": "ok", "CPU product": "ok", "triton": "skipped", "compile": "skipped", "exception": "ok",
    }  # fmt: skip
    assert "--shm-size 1g" in rows["node"][2]
    assert "g++ is not installed" in rows["compile"][1]
