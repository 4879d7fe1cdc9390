"""The real brain: the Scheduler and its policies behind the words of the broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from berth.live.card_models import card_model
from berth.live.local.brain import Brain
from berth.live.local.link import BRAIN
from berth.model import Profile
from berth.profiles import BEGUN, SHARED, keep_profile, peak_mem_mib
from tests.live.local.world import World

CARD = {
    "name": "here",
    "gpus": 2,
    "model": "NVIDIA A100-SXM4-80GB",
    "card_mib": 80_000,
    "cpu_milli": 8000,
    "mem_mib": 64_000,
}


CARD_MODEL = card_model("NVIDIA A100-SXM4-80GB", 80_000)


class Heard(Brain):
    """A brain and what it has said since it was asked last."""

    def __init__(self, begin: dict[str, Any]) -> None:
        self.said: list[dict[str, Any]] = []
        super().__init__(begin, self.said.append)

    def ask(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        self.said.clear()
        self.answer(message)
        return list(self.said)


def begin(
    policy: str = "priority+best-fit", knowledge: str = "user", events: list[Any] | None = None, **more: Any
) -> Heard:
    brain = Heard({"nodes": [CARD], "policy": policy, "knowledge": knowledge, "decide_s": 600, **more})
    brain.take(events or [])
    return brain


def job(job_id: str, milli: int = 100, mem_mib: int = 1000, **changed: Any) -> dict[str, Any]:
    told = {
        "id": job_id, "submit_ms": 0, "queued_ms": 0, "user": "ann", "application": "train", "gpus": 1,
        "share": (milli, mem_mib), "cpu_milli": 1000, "mem_mib": 0, "priority": 0, "time_limit_ms": None,
        "estimate_ms": None, "retries": 3, "rerun": False, "attempt": 1, "only_gpus": (), "version": 1,
        "order": (0, int(job_id) if job_id.isdigit() else 0), "memory": (0, 0), "start_failures": 0,
        "not_before_ms": 0, "why": "", "alike": [job_id],
    }  # fmt: skip
    return {"event": "waits", "job": told | changed}


def runs(
    job_id: str, *slots: int, milli: int = 100, mem_mib: int = 1000, started: bool = True, **changed: Any
) -> dict[str, Any]:
    return {
        **job(job_id, milli, mem_mib, **changed), "event": "runs", "start": 1, "slots": slots,
        "share": (milli, mem_mib), "best_effort": False, "start_ms": 5 if started else None, "started": started,
        "suspended_since_ms": None, "suspended_ms": 0, "parked_mib": 0, "resumes": True,
    }  # fmt: skip


def ended(job_id: str, how: str = "completed", attempt: int = 1, **changed: Any) -> dict[str, Any]:
    told = {
        "event": "ended", "id": job_id, "attempt": attempt, "how": how, "end_ms": 1000, "why": "", "needed_mib": 0,
        "peak_mib": None, "cpu_ms": None, "mem_peak_mib": None, "exit_code": None,
    }  # fmt: skip
    return told | changed


def start_failed(job_id: str, why: str = "") -> dict[str, Any]:
    return {"event": "start-failed", "id": job_id, "why": why, "no_room": False}


def decide(brain: Heard, *events: dict[str, Any], now_ms: int = 1000) -> list[dict[str, Any]]:
    return brain.ask({"do": "decide", "now_ms": now_ms, "serial": 1, "events": events})


def placed(said: list[dict[str, Any]]) -> dict[str, list[int]]:
    return {each["id"]: each["slots"] for each in said if each["say"] == "start"}


def test_jobs_are_placed_by_memory_and_the_last_word_is_decided() -> None:
    brain = begin()
    said = decide(
        brain, job("1", mem_mib=50_000), job("2", mem_mib=50_000), job("3", mem_mib=50_000), job("4")
    )
    assert placed(said) == {"1": [0], "2": [1]}
    assert said[-1]["say"] == "decided"


def test_the_next_brain_goes_on_with_what_start_intervals_had_learned() -> None:
    first, whole = begin(), {"milli": 1000, "mem_mib": 0, "time_limit_ms": 3_600_000}
    decide(first, *(job(each, **whole) for each in "1234"))
    first.ask({"do": "why", "serial": 1, "now_ms": 1000, "id": "3"})
    said = decide(first, ended("1"), now_ms=2000)
    (learned,) = [each["text"] for each in said if each["say"] == "learned-starts"]

    again = begin(learned_starts=learned, events=[runs("3", 0), *(job(each, **whole) for each in "45")])
    decide(again, now_ms=3000)
    (why,) = again.ask({"do": "why", "serial": 1, "now_ms": 3000, "id": "5"})
    assert why["starts_told"] == 1


def test_cards_of_a_kind_need_not_stand_side_by_side() -> None:
    large = {**CARD, "indices": [0, 2], "cpu_milli": None, "mem_mib": None}
    small = {**large, "name": "here-1", "gpus": 1, "model": "Tesla T4", "card_mib": 15_000, "indices": [1]}
    brain = Heard({"nodes": [large, small], "policy": "fifo+best-fit", "knowledge": "user", "decide_s": 600})
    said = decide(
        brain, *(job(each, mem_mib=50_000) for each in "12"), job("3", mem_mib=12_000, only_gpus=(1,))
    )
    assert placed(said) == {"3": [1], "1": [0], "2": [2]}


def test_a_higher_priority_goes_first() -> None:
    said = decide(begin(), job("1", 1000), job("2", 1000), job("3", 1000, priority=5))
    assert list(placed(said)) == ["3", "1"]


@pytest.mark.parametrize("policy", ["fifo+best-fit", "easy+priority+best-fit", "fgd"])
def test_a_job_that_is_queued_again_keeps_its_place(policy: str) -> None:
    brain = begin(policy)
    first = [job(str(number), 1000, time_limit_ms=60_000) for number in range(1, 7)]
    assert list(placed(decide(brain, *first))) == ["1", "2"]
    out_of_memory = ended("2", "out-of-memory", peak_mib=1000)
    again = job("2", 1000, 2000, attempt=2, version=2, time_limit_ms=60_000)
    assert list(placed(decide(brain, out_of_memory, again, now_ms=2000))) == ["2"]
    both = [ended("1"), ended("2", attempt=2)]
    assert list(placed(decide(brain, *both, now_ms=3000))) == ["3", "4"]


def test_a_job_on_named_gpus_keeps_its_place() -> None:
    brain = begin()
    said = decide(brain, *[job(str(number), 1000, only_gpus=(0,)) for number in (1, 2, 3)])
    assert list(placed(said)) == ["1"]
    lost = ended("1", "node-fail")
    assert list(placed(decide(brain, lost, job("1", 1000, only_gpus=(0,), attempt=2), now_ms=2000))) == ["1"]


def test_a_brain_forgets_jobs_that_are_gone() -> None:
    brain = begin()
    decide(brain, job("1"), job("2"), job("3", only_gpus=(1,)), job("4", 1000, 70_000))
    decide(brain, ended("1"), ended("3"), start_failed("2"), {"event": "withdrawn", "id": "4"})
    assert [brain.driver.job(job_id) for job_id in "1234"] == [None] * 4


def test_a_brain_that_begins_again_knows_what_runs() -> None:
    running = runs("7", 1, milli=600, mem_mib=50_000)
    brain = begin(events=[running, job("8", mem_mib=60_000), job("9", mem_mib=60_000)])
    assert placed(decide(brain)) == {"8": [0]}
    said = decide(brain, ended("7", peak_mib=400))
    assert placed(said) == {"9": [1]}


def test_named_gpus_are_heeded_and_others_get_the_rest() -> None:
    said = decide(begin(), job("1", 1000, only_gpus=(1,)), job("2", 1000))
    assert placed(said) == {"1": [1], "2": [0]}


def test_what_strangers_hold_is_not_given_away() -> None:
    brain = begin()
    assert (
        placed(
            decide(
                brain,
                {"event": "others", "slots": [(0, 100, 60_000), (1, 100, 60_000)]},
                job("1", mem_mib=30_000),
            )
        )
        == {}
    )
    assert placed(decide(brain, {"event": "others", "slots": [(1, 0, 0)]})) == {"1": [1]}


def test_a_job_that_is_edited_while_it_was_given_gpus_is_given_them_anew() -> None:
    brain = begin()
    decide(brain, job("1"))
    (said, _) = decide(brain, job("1", mem_mib=70_000, version=2))
    assert (said["version"], said["share"]) == (2, (100, 70_000))


def test_after_out_of_memory_the_broker_is_told_what_the_next_attempt_needs() -> None:
    brain = begin()
    decide(brain, job("1"))
    end = ended("1", "out-of-memory", needed_mib=3000, peak_mib=990)
    (again, _) = decide(brain, runs("1", 0), end)
    assert (again["say"], again["attempt"], again["memory"], again["keeps_place"]) == (
        "again",
        2,
        (1, 3375),
        True,
    )
    (start, _) = decide(brain, job("1", attempt=2, memory=(1, 3375)))
    assert start["share"] == (100, 3375)


def test_a_start_that_fails_is_tried_again_later_and_says_when_it_is_to_be_asked() -> None:
    brain = begin()
    decide(brain, job("1"))
    again, decided = decide(brain, start_failed("1", "no memory"), now_ms=2000)
    assert (again["start_failures"], again["not_before_ms"]) == (1, 3000)
    waits = job("1", start_failures=1, not_before_ms=3000, why=again["why"], version=2)
    (decided,) = decide(brain, waits, now_ms=2000)
    assert decided["wake_ms"] == 3000
    assert placed(decide(brain, now_ms=3000)) == {"1": [0]}


@pytest.mark.slow
def test_under_learned_an_unknown_application_runs_alone_and_shares_once_it_is_recorded(
    tmp_path: Path,
) -> None:
    brain = begin("learned", "history")
    use = np.tile([0.1, 0.05, 0.1, 0.0], (30, 1))
    ran: tuple[str, ...] = ()
    for at, (kind, most) in enumerate(((None, 1), (SHARED, 2), ("live", 4))):
        events = [ended(job_id) for job_id in ran]
        if kind is not None:
            profile = Profile("train", kind, 0, "", CARD_MODEL, 1000, use, "sm-activity")
            events.append({"event": "profile", "path": str(keep_profile(profile, tmp_path))})
        ids = [f"{at}-{each}" for each in range(4)]
        jobs = [job(each, share=(1000, 0)) for each in ids]  # no --mem, no --gpus
        found = placed(decide(brain, *events, *jobs, now_ms=1000 * (at + 1)))
        ran = tuple(found)
        assert len(found) == most  # at first one, as the others wait for the first look at it
        decide(brain, *({"event": "withdrawn", "id": each} for each in ids if each not in found))


def test_why_a_job_waits_is_told_with_the_numbers_of_every_gpu() -> None:
    brain = begin()
    decide(brain, job("1", mem_mib=50_000), job("2", mem_mib=50_000), job("3", mem_mib=50_000))
    (why,) = brain.ask({"do": "why", "serial": 9, "now_ms": 1000, "id": "3"})
    assert why["found"]
    assert [each["lacking"] for each in why["candidates"]] == [["29.3G is free, 48.8G wanted"]] * 2


def test_why_a_whole_card_is_waited_for_names_its_memory() -> None:
    brain = begin()
    decide(brain, {"event": "others", "slots": [(0, 100, 16_000), (1, 100, 16_000)]}, job("1", 1000, 0))
    (why,) = brain.ask({"do": "why", "serial": 9, "now_ms": 1000, "id": "1"})
    assert why["candidates"][0]["lacking"] == [
        "90 % of its compute is free, 100 % wanted",
        "62.5G is free, 78.1G wanted",
    ]


def test_why_a_job_waits_names_the_machine_where_that_is_short() -> None:
    brain = begin()
    decide(brain, job("1", cpu_milli=5000, mem_mib=1000), job("2", cpu_milli=5000))
    (why,) = brain.ask({"do": "why", "serial": 9, "now_ms": 1000, "id": "2"})
    assert why["machine"] == ["waits for CPUs: 3 of 8 CPUs are free, 5 wanted"]
    unknown = "start unknown: a running job has no time limit, and no job like it has ended yet"
    reason = f"waits for CPUs: 3 of 8 CPUs are free, 5 wanted; {unknown}"
    assert why["reason"] == reason
    (told,) = brain.ask({"do": "reasons", "serial": 9, "now_ms": 1000, "ids": ["2", "1"]})
    assert told["reasons"] == {"2": (reason, None, None)}


def test_why_a_job_waits_says_where_the_policy_places_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "idle.py").write_text("def policy(queue, cluster, now_ms):\n    return iter(())\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    brain = begin("idle:policy")
    decide(brain, job("1"))
    (told,) = brain.ask({"do": "reasons", "serial": 9, "now_ms": 1000, "ids": ["1"]})
    assert told["reasons"] == {"1": ("there is room; the policy has not placed it", None, None)}


def test_a_policy_that_raises_is_told_and_the_brain_lives(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "angry.py").write_text(
        "def policy(queue, cluster, now_ms):\n    raise ValueError('no')\n    yield\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    brain = begin("angry:policy")
    said = decide(brain, job("1"))
    assert said[0]["why"].startswith("the policy fails: ValueError: no (")
    assert said[-1]["say"] == "decided"


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "A100-80G"])
def test_a_card_is_known_by_what_nvml_calls_it(name: str) -> None:
    from berth.live.card_models import card_model

    model = card_model(name, 81_000)
    assert (model.name, model.mem_mib, model.cores) == ("A100-80", 81_000, 6912)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["easy+priority+best-fit", "learned", "fgd", "fair-share+greedy"])
def test_a_queue_with_the_real_brain_runs_jobs_under(policy: str) -> None:
    world = World(brain=BRAIN, options=["--policy", policy])
    try:
        world.up()
        jobs = world.submit_many(
            [("true", {"gpus": 0.3, "mem": "4G", "time": "60s"})] * 6 + [("true", {"gpus": 0})]
        )
        assert set(world.wait(*jobs).values()) == {("completed", 0)}
    finally:
        world.close()


def test_a_job_that_was_starting_when_the_brain_began_gives_its_share_back_if_it_never_starts() -> None:
    others = [job("8", 1000), job("9", 1000)]
    brain = begin(events=[runs("7", 1, milli=1000, mem_mib=0, started=False), *others])
    assert placed(decide(brain)) == {"8": [0]}
    assert placed(decide(brain, start_failed("7"))) == {"9": [1]}
    brain = begin(events=[runs("7", 1, milli=1000, mem_mib=0), *others])
    assert placed(decide(brain, start_failed("7"))) == {"8": [0]}


def shares(said: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    return {each["id"]: (each["share"].mem_mib, each["peak_mib"]) for each in said if each["say"] == "start"}


def test_what_a_running_job_has_grown_by_is_given_to_nobody_else() -> None:
    brain = begin(events=[runs("1", 0), runs("2", 1)])
    grown = {**runs("1", 0), "share": (100, 60_000)}
    assert placed(decide(brain, grown, job("3", mem_mib=50_000))) == {"3": [1]}
    assert placed(decide(brain, job("4", mem_mib=50_000))) == {}
    assert placed(decide(brain, {**grown, "share": (100, 20_000)})) == {"4": [0]}


def test_a_job_that_may_grow_is_promised_what_it_is_believed_to_need() -> None:
    """Nothing is known at first, so that its user's word counts, as it does for the least and the most later."""
    grows = {"mem_max_mib": 80_000}
    brain = begin(knowledge="history")
    assert shares(decide(brain, job("1", mem_mib=20_000, **grows))) == {"1": (20_000, 20_000)}
    decide(brain, runs("1", 0, mem_mib=20_000), ended("1", peak_mib=30_000))
    promised = {
        key: shares(decide(brain, job(key, **({"mem_mib": 20_000} | grows | changed))))[key][0]
        for key, changed in (
            ("2", {}),
            ("3", {"mem_mib": 40_000}),
            ("4", {"mem_max_mib": 25_000}),
            ("5", {"mem_max_mib": 0}),
        )
    }
    assert 30_000 <= promised.pop("2") <= 35_000
    assert promised == {"3": 40_000, "4": 25_000, "5": 20_000}


def test_a_suspended_job_that_could_not_come_back_is_told_to_again() -> None:
    brain = begin(events=[runs("1", 0, mem_mib=60_000)])
    decide(brain)
    away = {**runs("1", 0, mem_mib=60_000), "suspended_since_ms": 500, "parked_mib": 60_000}
    resume = {"say": "resume", "id": "1"}
    assert resume in decide(brain, away, now_ms=2000)
    assert resume not in decide(brain, runs("1", 0, mem_mib=60_000), now_ms=3000)
    assert resume in decide(brain, away, now_ms=4000)


def test_what_a_job_grew_by_is_what_the_suspended_one_left_in_whatever_order_both_are_told() -> None:
    brain = begin(events=[runs("1", 0, mem_mib=60_000), runs("2", 0, mem_mib=15_000)])
    decide(brain)
    away = {**runs("2", 0, mem_mib=15_000), "suspended_since_ms": 500, "parked_mib": 15_000}
    grown = {**runs("1", 0, mem_mib=60_000), "share": (100, 70_000)}
    said = decide(brain, grown, away, now_ms=2000)
    assert [each for each in said if each["say"] == "resume"] == []
    assert brain.driver.unplaced == {}


def test_what_was_sampled_of_a_run_that_goes_on_is_known_of_its_application(tmp_path: Path) -> None:
    whole = {"milli": 1000, "mem_mib": 0}
    brain = begin("pairs", "history", samples=str(tmp_path), events=[runs("1", 0, **whole)])
    assert decide(brain, now_ms=1000)[-1]["measured"] == ["1"]
    lines = [f"{1000 * at} 30.0 9000 1\n" for at in range(1, 31)]
    (tmp_path / "1-1").write_text("".join(lines), encoding="ascii")
    decide(brain, now_ms=31_000)
    known = brain.driver.knowledge.profiles["train"]
    assert (known.kind, peak_mem_mib(known), len(known.usage)) == (BEGUN, 9000, 30)


def test_the_next_brain_takes_all_that_was_sampled_of_a_run_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "1-1").write_text("".join(f"{1000 * at} 30.0 9000 1\n" for at in range(1, 101)))
    run = runs("1", 0, milli=1000, mem_mib=0)
    brain = begin("pairs", "history", samples=str(tmp_path), events=[run])
    decide(brain, now_ms=101_000)
    assert len(brain.driver.knowledge.profiles["train"].usage) == 100


def test_a_broker_that_names_no_start_of_a_run_has_no_samples_of_it() -> None:
    run = runs("1", 0, milli=1000, mem_mib=0)
    del run["start"]
    brain = begin("pairs", "history", events=[run])
    assert [each["say"] for each in decide(brain, now_ms=31_000)] == ["decided"]
    assert not brain.driver.knowledge.profiles


@pytest.mark.parametrize("lines", ["1000 30.0 9000 1\n", "1000 - 9000 1\n" * 9, "1000 30.0 9000 0\n" * 9])
def test_what_tells_too_little_of_a_run_is_no_profile_of_it(tmp_path: Path, lines: str) -> None:
    whole = {"milli": 1000, "mem_mib": 0}
    brain = begin("pairs", "history", samples=str(tmp_path), events=[runs("1", 0, **whole)])
    (tmp_path / "1-1").write_text(lines, encoding="ascii")
    decide(brain, now_ms=31_000)
    assert not brain.driver.knowledge.profiles


STARTS_A_BRAIN = f"""
import os, subprocess, sys
brain = subprocess.Popen([sys.executable, "-m", "{BRAIN}", str(os.getpid())], stdin=subprocess.PIPE)
brain.stdin.write(sys.argv[1].encode() + b"\\n")
brain.stdin.flush()
brain.wait()
"""


def test_a_brain_ends_with_a_broker_that_is_killed(tmp_path: Path) -> None:
    """Whatever it is at, such as compiling: here, a module of a user's that does not end."""
    (tmp_path / "hanging.py").write_text("import time\ntime.sleep(1000)\n")
    message = {
        "do": "begin", "nodes": [CARD], "policy": "hanging:policy", "knowledge": "user", "events": [],
        "paths": [str(tmp_path)],
    }  # fmt: skip
    command = [sys.executable, "-c", STARTS_A_BRAIN, json.dumps(message)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        assert [json.loads(broker.stdout.readline())["what"] for _ in range(2)] == ["loading", "making"]
        broker.kill()
        broker.communicate(timeout=300)  # ends when the brain has closed its end, too


def test_a_brain_ends_if_its_broker_was_killed_before_it_could_ask_to_be_killed_too() -> None:
    """Then its parent is another process; here its line stays open."""
    with subprocess.Popen([sys.executable, "-m", BRAIN, "1"], stdin=subprocess.PIPE) as brain:
        try:
            assert brain.wait(timeout=60) == 0
        finally:
            brain.kill()
