"""The queue that predictions are asked of is read from what Slurm prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from berth.errors import HistoryError
from berth.history.importing.pending import read_queue, tasks_of

SQUEUE = {
    "jobs": [
        {
            "job_id": 9001,
            "job_state": "PENDING",
            "submit_time": 1_700_400_000,
            "start_time": 0,
            "user_name": "ann",
            "account": "ai",
            "partition": "a100",
            "qos": "normal",
            "time_limit": {"set": True, "infinite": False, "number": 60},
            "tres_req_str": "cpu=4,mem=4000M,node=1,gres/gpu=2",
            "node_count": 1,
            "comment": "pytorch",
        },
        {"job_id": 9002, "job_state": ["RUNNING"], "submit_time": 1_700_390_000, "start_time": 1_700_395_000},
        {"job_id": 9003, "job_state": "COMPLETED", "submit_time": 1_700_390_000},
    ]
}


def test_the_queue_is_read_from_squeue_and_from_sacct(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(SQUEUE))
    running, waiting = read_queue(tmp_path / "a.json")
    assert (running.job_id, running.start_ms) == ("9002", 1_700_395_000_000)
    assert (waiting.job_id, waiting.gpus, waiting.cpu_milli, waiting.time_limit_ms) == (
        "9001",
        2,
        4000,
        3_600_000,
    )
    (tmp_path / "b.psv").write_text(
        "JobIDRaw|User|Account|Partition|QOS|State|Submit|Start|Timelimit|ReqTRES|NNodes|Comment\n"
        "9001|ann|ai|a100|normal|PENDING|2023-11-19T13:20:00|Unknown|01:00:00|cpu=4,mem=4000M,gres/gpu=2|1|pytorch\n"
        "9001.batch|ann|ai|a100|normal|RUNNING|2023-11-19T13:20:00|Unknown|01:00:00||1|\n"
    )
    assert read_queue(tmp_path / "b.psv") == (waiting,)
    for text, words in (
        ("{", "not what `squeue --json`"),
        ("A|B\n", "has no column"),
        ('{"jobs": [{"job_id": 1, "time": {}, "state": {}}]}', "is what `sacct --json` prints"),
    ):
        (tmp_path / "c").write_text(text)
        with pytest.raises(HistoryError, match=words):
            read_queue(tmp_path / "c")


def test_tasks_of_an_array_that_wait_are_jobs_of_their_own(tmp_path: Path) -> None:
    assert tasks_of("1-4,7%2") == (1, 2, 3, 4, 7)
    assert tasks_of("0-8:4") == (0, 4, 8)
    assert tasks_of("3,...") == (3,)
    assert tasks_of("") == ()
    array = {**SQUEUE["jobs"][0], "array_job_id": 9001, "array_task_string": "5-7"}
    (tmp_path / "a.json").write_text(json.dumps({"jobs": [array]}))
    assert [job.job_id for job in read_queue(tmp_path / "a.json")] == ["9001_5", "9001_6", "9001_7"]
    (tmp_path / "b.psv").write_text(
        "JobIDRaw|JobID|State|Submit\n9001|9001_[5-7%1]|PENDING|2023-11-19T13:20:00\n"
    )
    assert [job.job_id for job in read_queue(tmp_path / "b.psv")] == ["9001_5", "9001_6", "9001_7"]
