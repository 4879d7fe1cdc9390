"""The real brain: the Scheduler and its policies behind the words of the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from berth.live.card_models import card_model
from berth.live.local.brain import Brain
from berth.live.local.entry import Entry, Limits
from berth.live.local.link import BRAIN
from berth.live.local.request import Request
from berth.live.local.telling import snapshot
from berth.model import Profile
from berth.profiles import SHARED, keep_profile
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


def begin(
    policy: str = "priority+best-fit", knowledge: str = "user", notes: list[Any] | None = None
) -> Brain:
    brain = Brain({"nodes": [CARD], "policy": policy, "knowledge": knowledge, "decide_s": 600})
    brain.tell(notes or [])
    return brain


def job(job_id: str, milli: int = 100, mem_mib: int = 1000, **changed: Any) -> dict[str, Any]:
    told = {
        "id": job_id, "submit_ms": 0, "user": "ann", "application": "train", "gpus": 1, "share": (milli, mem_mib),
        "cpu_milli": 1000, "mem_mib": 0, "priority": 0, "time_limit_ms": None, "estimate_ms": None, "retries": 3,
        "attempt": 1, "pins": (), "version": 1,
        "standing": (0, int(job_id) if job_id.isdigit() else 0),
    }  # fmt: skip
    return {"note": "submit", "job": told | changed}


def decide(brain: Brain, *notes: dict[str, Any], now_ms: int = 1000) -> list[dict[str, Any]]:
    return list(
        brain.answers(
            {"do": "decide", "now_ms": now_ms, "serial": 1, "notes": [{**n, "now_ms": now_ms} for n in notes]}
        )
    )


def placed(said: list[dict[str, Any]]) -> dict[str, list[int]]:
    return {each["id"]: each["slots"] for each in said if each["say"] == "placed"}


def test_jobs_are_placed_by_memory_and_the_last_word_is_decided() -> None:
    brain = begin()
    said = decide(
        brain, job("1", mem_mib=50_000), job("2", mem_mib=50_000), job("3", mem_mib=50_000), job("4")
    )
    assert placed(said) == {"1": [0], "2": [1]}
    assert said[-1]["say"] == "decided"


def test_cards_of_a_kind_need_not_stand_side_by_side() -> None:
    large = {**CARD, "indices": [0, 2], "cpu_milli": None, "mem_mib": None}
    small = {**large, "name": "here-1", "gpus": 1, "model": "Tesla T4", "card_mib": 15_000, "indices": [1]}
    brain = Brain({"nodes": [large, small], "policy": "fifo+best-fit", "knowledge": "user", "decide_s": 600})
    said = decide(brain, *(job(each, mem_mib=50_000) for each in "12"), job("3", mem_mib=12_000, pins=(1,)))
    assert placed(said) == {"3": [1], "1": [0], "2": [2]}


def test_a_higher_priority_goes_first() -> None:
    said = decide(begin(), job("1", 1000), job("2", 1000), job("3", 1000, priority=5))
    assert list(placed(said)) == ["3", "1"]


@pytest.mark.parametrize("policy", ["fifo+best-fit", "easy+priority+best-fit", "fgd"])
def test_a_job_that_is_queued_again_keeps_its_place(policy: str) -> None:
    brain = begin(policy)
    first = [job(str(number), 1000, time_limit_ms=60_000) for number in range(1, 7)]
    assert list(placed(decide(brain, *first))) == ["1", "2"]
    out_of_memory = {"note": "ended", "id": "2", "how": "out-of-memory", "held_mib": 1000, "peak_mib": 1000}
    again = job("2", 1000, 2000, attempt=2, version=2, time_limit_ms=60_000)
    assert list(placed(decide(brain, out_of_memory, again, now_ms=2000))) == ["2"]
    ended = [{"note": "ended", "id": each, "how": "completed"} for each in ("1", "2")]
    assert list(placed(decide(brain, *ended, now_ms=3000))) == ["3", "4"]


def test_a_job_on_named_gpus_keeps_its_place() -> None:
    brain = begin()
    said = decide(brain, *[job(str(number), 1000, pins=(0,)) for number in (1, 2, 3)])
    assert list(placed(said)) == ["1"]
    lost = {"note": "ended", "id": "1", "how": "node-fail"}
    assert list(placed(decide(brain, lost, job("1", 1000, pins=(0,), attempt=2), now_ms=2000))) == ["1"]


def test_a_brain_forgets_jobs_that_are_gone() -> None:
    brain = begin()
    decide(brain, job("1"), job("2"), job("3", pins=(1,)), job("4", 1000, 70_000))
    gone = [{"note": "ended", "id": each, "how": "completed"} for each in "13"]
    decide(brain, *gone, {"note": "failed", "id": "2"}, {"note": "withdraw", "id": "4"})
    assert brain._told == {}


def test_a_brain_that_begins_again_knows_what_runs() -> None:
    running = {
        **job("7", 600, 50_000),
        "note": "running",
        "slots": [1],
        "share": (600, 50_000),
        "best_effort": False,
        "start_ms": 5,
    }
    brain = begin(notes=[running, job("8", mem_mib=60_000), job("9", mem_mib=60_000)])
    assert placed(decide(brain)) == {"8": [0]}
    said = decide(brain, {"note": "ended", "id": "7", "how": "completed", "held_mib": 0, "peak_mib": 400})
    assert placed(said) == {"9": [1]}


def test_named_gpus_are_heeded_and_others_get_the_rest() -> None:
    said = decide(begin(), job("1", 1000, pins=(1,)), job("2", 1000))
    assert placed(said) == {"1": [1], "2": [0]}


def test_what_strangers_hold_is_not_given_away() -> None:
    brain = begin()
    assert (
        placed(
            decide(
                brain,
                {"note": "strangers", "slots": [(0, 100, 60_000), (1, 100, 60_000)]},
                job("1", mem_mib=30_000),
            )
        )
        == {}
    )
    assert placed(decide(brain, {"note": "strangers", "slots": [(1, 0, 0)]})) == {"1": [1]}


def test_a_job_that_is_edited_while_it_was_given_gpus_is_given_them_anew() -> None:
    brain = begin()
    decide(brain, job("1"))
    changed = {**job("1", mem_mib=70_000, version=2), "note": "replace"}
    (said, _) = decide(brain, changed)
    assert (said["version"], said["share"]) == (2, (100, 70_000))


def test_out_of_memory_is_queued_again_by_the_broker_alone() -> None:
    brain = begin()
    decide(brain, job("1"))
    end = {"note": "ended", "id": "1", "how": "out-of-memory", "held_mib": 3000, "peak_mib": 990}
    assert placed(decide(brain, {"note": "started", "id": "1"}, end)) == {}
    assert placed(decide(brain, job("1", mem_mib=4000, attempt=2))) == {"1": [0]}


def test_under_learned_an_unknown_application_runs_alone_and_shares_once_it_is_recorded(
    tmp_path: Path,
) -> None:
    brain = begin("learned", "history")
    use = np.tile([0.1, 0.05, 0.1, 0.0], (30, 1))
    ran: tuple[str, ...] = ()
    for at, (kind, most) in enumerate(((None, 1), (SHARED, 1), ("live", 2))):
        notes = [{"note": "ended", "id": job_id, "how": "completed"} for job_id in ran]
        if kind is not None:
            profile = Profile("train", kind, 0, "", CARD_MODEL, 1000, use, "sm-activity")
            notes.append({"note": "profile", "path": str(keep_profile(profile, tmp_path))})
        ids = [f"{at}-{each}" for each in range(4)]
        jobs = [job(each, share=(1000, 0)) for each in ids]  # no --mem, no --gpus
        found = placed(decide(brain, *notes, *jobs, now_ms=1000 * (at + 1)))
        ran = tuple(found)
        assert len(found) == 2 * most
        decide(brain, *({"note": "withdraw", "id": each} for each in ids if each not in found))


def test_why_a_job_waits_is_told_with_the_numbers_of_every_gpu() -> None:
    brain = begin()
    decide(brain, job("1", mem_mib=50_000), job("2", mem_mib=50_000), job("3", mem_mib=50_000))
    (why,) = brain.answers({"do": "why", "serial": 9, "id": "3"})
    assert why["found"]
    assert [each["lacking"] for each in why["candidates"]] == [["29.3G is free, 48.8G wanted"]] * 2


def test_why_a_whole_card_is_waited_for_names_its_memory() -> None:
    brain = begin()
    decide(brain, {"note": "strangers", "slots": [(0, 100, 16_000), (1, 100, 16_000)]}, job("1", 1000, 0))
    (why,) = brain.answers({"do": "why", "serial": 9, "id": "1"})
    assert why["candidates"][0]["lacking"] == [
        "90 % of its compute is free, 100 % wanted",
        "62.5G is free, 78.1G wanted",
    ]


def test_why_a_job_waits_names_the_machine_where_that_is_short() -> None:
    brain = begin()
    decide(brain, job("1", cpu_milli=5000, mem_mib=1000), job("2", cpu_milli=5000))
    (why,) = brain.answers({"do": "why", "serial": 9, "id": "2"})
    assert why["machine"] == ["3 of 8 CPUs are free, 5 wanted"]
    assert why["reason"] == "waits for the machine: 3 of 8 CPUs are free, 5 wanted"
    (told,) = brain.answers({"do": "reasons", "serial": 9, "ids": ["2", "1"]})
    assert told["reasons"] == {"2": "waits for the machine: 3 of 8 CPUs are free, 5 wanted", "1": ""}


def test_why_a_job_waits_says_where_the_policy_places_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "idle.py").write_text("def policy(queue, cluster, now_ms):\n    return iter(())\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    brain = begin("idle:policy")
    decide(brain, job("1"))
    (told,) = brain.answers({"do": "reasons", "serial": 9, "ids": ["1"]})
    assert told["reasons"] == {"1": "there is room; the policy has not placed it"}


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
        assert set(world.wait(*jobs, timeout=120).values()) == {("completed", 0)}
    finally:
        world.close()


def test_a_job_that_was_starting_when_the_brain_began_gives_its_share_back_if_it_never_starts() -> None:
    entry = Entry(
        "7", 1, 0, "ann", Request(("true",), milli=1000), 1, 1, 1, state="starting", slots=(1,), share=(1000, 0),
    )  # fmt: skip
    limits = Limits((80_000, 80_000), 8000, 64_000)
    brain = begin(notes=[*snapshot([entry], [], limits), job("8", 1000), job("9", 1000)])
    assert placed(decide(brain)) == {"8": [0]}
    assert placed(decide(brain, {"note": "failed", "id": "7", "again": False})) == {"9": [1]}
    entry.state, entry.start_ms = "running", 5
    brain = begin(notes=[*snapshot([entry], [], limits), job("8", 1000), job("9", 1000)])
    assert placed(decide(brain, {"note": "failed", "id": "7", "again": False})) == {"8": [0]}
