"""What people are shown."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from berth.live.driver.snapshot import Gpu, Stranger, Tenant
from berth.live.driver.words import moment, starts_text
from berth.live.local.tables import job_lines, status_lines, why_lines

ATTEMPT: dict[str, Any] = {
    "attempt": 1, "state": "failed", "exit_code": None, "reason": "it could not be started 5 times: no folder",
    "slots": [], "start_ms": None, "end_ms": 1_000, "share": [0, 0], "peak_mib": None, "refused": 0,
}  # fmt: skip
JOB: dict[str, Any] = {
    "id": "1", "state": "failed", "reason": "", "gpus": 1, "milli": 1000, "mem_mib": 0, "mem_max_mib": 0, "core_pct": 0,
    "cpu_milli": 1000, "host_mem_mib": 0, "time_limit_ms": None, "name": "", "user": "ann", "application": "true",
    "params": {}, "after": [], "comment": "", "command": ["true"], "folder": "/", "output": "/1.1.out",
    "submit_ms": 0, "start_ms": None, "slots": [], "attempt": 1, "attempts": [ATTEMPT],
}  # fmt: skip
GPU = Gpu("", 0, "A100-80G", 81_920)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("ready", "it decides"),
        ("loading", "it is being loaded; jobs wait until that is done"),
        (
            "compiling",
            "it is being compiled, which takes longest the first time; jobs wait until that is done",
        ),
        ("down", "its process does not run; jobs wait until it is started again"),
    ],
)
def test_the_status_says_in_plain_words_what_the_policy_does(state: str, told: str) -> None:
    answer = {
        "pid": 1, "state_folder": "/s", "fake": False, "policy": "fifo", "knowledge": "user", "brain": state,
        "brain_pid": 2, "jobs": {"waiting": 0}, "host_mem_enforced": True, "trouble": [], "gpus": [],
    }  # fmt: skip
    assert status_lines(answer, 0.0)[1] == f"policy: fifo (knowledge: user); {told} (process 2)"
    tenant = Tenant("7", "ann", "new", 1000, 81_920, since_ms=1000, measured=True)
    answer["gpus"] = [asdict(replace(GPU, tenants=(tenant,)))]
    assert status_lines(answer, 12_000.0)[-1] == (
        "  job 7 (ann, new): 100 %, 80G, running for 0:11, measured because its application is unknown"
    )


def test_an_attempt_that_never_started_is_told_without_a_run_time() -> None:
    (head, left) = job_lines(JOB)[-2:]
    assert head == "  attempt 1: failed, it could not be started 5 times: no folder"
    assert left.startswith("    left     ")
    assert left.endswith(", never started")


def test_why_says_which_gpus_are_lost_or_drained_instead_of_what_they_lack() -> None:
    gpus = [
        asdict(replace(GPU, index=at, health="lost" if at == 0 else "", drained=at == 1)) for at in range(3)
    ]
    brain = {
        "policy": "fifo", "ahead": 0, "waiting": 1, "first": [], "expected_ms": 0, "reserved_ms": None, "machine": [],
        "obstacle": "waits for room",
        "candidates": [
            {"gpu": at, "lacking": ["0M is free, 8G wanted"][: 2 - at], "left_milli": 900, "left_mib": 2048}
            for at in range(3)
        ],
    }  # fmt: skip
    job = {**JOB, "state": "waiting", "reason": "waits for room", "since_ms": 0, "now_ms": 5000, "note": "",
           "never": "", "gpus": gpus, "brain": brain}  # fmt: skip
    assert why_lines(job)[-3:] == [
        "  GPU 0: lost: the driver no longer answers for it",
        "  GPU 1: drained; jobs start there again after berth undrain 1",
        "  GPU 2: has room, left over 90 % and 2G",
    ]


def test_why_says_how_to_be_rid_of_a_partition_that_nothing_uses() -> None:
    remedy = "nothing uses it; berth partition remove left"
    left = Stranger("partition left", 16 << 10, remedy=remedy)
    gpu = asdict(replace(GPU, strangers=(left, Stranger("partition busy", 8 << 10))))
    brain = {
        "policy": "fifo", "ahead": 0, "waiting": 1, "first": [], "expected_ms": 0, "reserved_ms": None, "machine": [],
        "obstacle": "waits for room",
        "candidates": [{"gpu": 0, "lacking": ["64G is free, 80G wanted"], "left_milli": 0, "left_mib": 0}],
    }  # fmt: skip
    job = {**JOB, "state": "waiting", "reason": "waits for room", "since_ms": 0, "now_ms": 5000, "note": "",
           "never": "", "gpus": [gpu], "brain": brain}  # fmt: skip
    assert why_lines(job)[-1] == (
        "  GPU 0: 64G is free, 80G wanted; held by partition left of no job 16G (nothing uses it; berth partition"
        " remove left), partition busy of no job 8G"
    )


def waiting(reason: str, **brain: Any) -> list[str]:
    told = {
        "policy": "easy+fifo", "ahead": 1, "waiting": 2, "first": ["7"], "expected_ms": 0, "reserved_ms": None,
        "machine": [], "obstacle": reason, "candidates": [],
    }  # fmt: skip
    whole = f"{reason}; 1 job before it; expected to start at {moment(61_000)}"
    job = {**JOB, "state": "waiting", "reason": whole, "since_ms": 0, "now_ms": 5000, "note": "", "never": "",
           "gpus": [], "brain": {**told, **brain}}  # fmt: skip
    job["never"] = job["brain"].pop("never", "")
    return why_lines(job)


def test_why_says_each_reason_and_date_once() -> None:
    cpus = "waits for CPUs: 0 of 2 CPUs are free, 1 wanted"
    memory = "waits for memory: 1G of 2G of a node's memory is free, 2G wanted"
    assert waiting(cpus, reserved_ms=61_000, machine=[cpus, memory]) == [
        f"Job 1 has been waiting for 0:05: {cpus}",
        "  policy: easy+fifo; 1 of 2 waiting jobs are ahead of it",
        "  the first are 7",
        f"  expected to start at {moment(61_000)}",
        f"  it {memory}",
    ]
    assert waiting("no node has 9 GPUs", never="no node has 9 GPUs")[:2] == [
        "Job 1 has been waiting for 0:05",
        "  it cannot run even if nothing else does: no node has 9 GPUs",
    ]


def test_why_says_what_keeps_room_from_coming() -> None:
    reason = "waits for room; it cannot start while 1 GPU is drained, lost or used by others"
    assert waiting(reason)[0] == f"Job 1 has been waiting for 0:05: {reason}"
    assert waiting("waits for room")[0] == "Job 1 has waited 0:05 for room"


def test_a_reason_that_names_the_state_does_not_name_it_twice() -> None:
    reason = "suspended by its user; after `berth resume 1` it runs on when GPU 0 has room"
    job = {
        **JOB,
        "state": "suspended",
        "reason": reason,
        "since_ms": 0,
        "now_ms": 5000,
        "never": "",
        "brain": None,
    }
    (head, *_) = why_lines({**job, "growth": None, "note": ""})
    after = "by its user; after `berth resume 1` it runs on when GPU 0 has room"
    assert head == f"Job 1 has been suspended for 0:05 {after}"
    assert job_lines(job)[0] == f"Job 1: suspended {after}"


def test_a_job_tells_how_far_its_memory_may_grow() -> None:
    job = {**JOB, "mem_mib": 20 << 10, "mem_max_mib": 60 << 10}
    assert "  asked for:   1 GPU, 20G of GPU memory, growing to 60G, 1 CPU" in job_lines(job)


def test_a_wide_start_interval_is_told_to_the_minute() -> None:
    begin, soon, late = moment(0), moment(59_000), moment(3_600_000)
    assert starts_text(0, 59_000) == f"expected to start from {begin} to {soon[11:]}"
    end = late[:-3] if late[:10] != begin[:10] else late[11:-3]
    assert starts_text(0, 3_600_000) == f"expected to start from {begin[:-3]} to {end}"
