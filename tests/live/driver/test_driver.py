"""What the driver does: it adopts, waits, puts aside, gives more memory, evicts and explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from berth.cluster import Cluster, Queue
from berth.errors import ClusterError, KnowledgeError
from berth.knowledge import Knowledge, User, believed_run, make_knowledge
from berth.knowledge.belief import Spread
from berth.knowledge.out_of_memory import MemoryNeed, need_after
from berth.live.driver import wait_reasons
from berth.live.driver.driver import Driver, Settings
from berth.live.driver.site import End, FailedStart, Gpu, NodeState, SiteJob, SiteNode, SiteRun
from berth.live.driver.words import starts_text
from berth.model import (
    FOREVER_MS,
    GpuModel,
    GpuSlot,
    Job,
    Node,
    Placement,
    Profile,
    RecordState,
    Resize,
    Share,
    WakeAt,
)
from berth.policies import Decision
from berth.profiles import BEGUN
from tests.live.driver.memory_site import MemorySite, SamplingSite

CARD_MIB = 40_000
CARD = GpuModel("A100-40", mem_mib=CARD_MIB)


def node(name: str = "n1", gpus: int = 2) -> Node:
    return Node(name, gpus, CARD, 16_000, 64_000)


def job(job_id: str, *, milli: int = 500, mem_mib: int = 5000, **changed: Any) -> SiteJob:
    asked = {"gpus": 1, "application": "train", "user": "ann"} | changed
    of_site = {
        name: asked.pop(name) for name in ("only_gpus", "alike", "version", "mem_max_mib") if name in asked
    }
    return SiteJob(Job(job_id, 0, None, share=Share(milli, mem_mib), **asked), (int(job_id),), **of_site)


def site_of(*jobs: SiteJob, nodes: tuple[Node, ...] = (node(),), kind: type[MemorySite] = MemorySite) -> Any:
    return kind({each.name: each for each in nodes}, jobs={each.job.id: each for each in jobs})


def driver_of(site: MemorySite, policy: str = "fifo+best-fit", **settings: Any) -> Driver:
    return Driver(site, Settings(policy=policy, knowledge="user", **settings))


def where(site: MemorySite) -> dict[str, list[str]]:
    return {job_id: [str(gpu) for gpu in run.gpus] for job_id, run in site.runs.items()}


def test_the_rule_after_out_of_memory_is_one_function() -> None:
    need = need_after(MemoryNeed(), 5000)
    assert (need, need_after(need, 6500)) == (MemoryNeed(1, 5625), MemoryNeed(2, 8125))
    assert [MemoryNeed(times, 1).alone for times in range(5)] == [False, False, False, True, True]


def test_what_runs_is_adopted_whoever_started_it() -> None:
    site = site_of(job("9", milli=1000))
    stranger = replace(job("7", milli=1000), job=replace(job("7", milli=1000).job, labels=("of no node",)))
    site.runs["7"] = SiteRun(stranger, (Gpu("n1", 0),), start_ms=10)
    site.runs["8"] = SiteRun(job("8", milli=600), nodes=("n1",), start_ms=20)
    driver = driver_of(site)
    driver.step(1000)
    running = driver.scheduler.cluster.running
    assert {job_id: (run.slots[0].index, run.start_ms) for job_id, run in running.items()} == {
        "7": (0, 10), "8": (1, 20),
    }  # fmt: skip
    assert site.why == {"9": "waits for room"}


def test_a_run_for_which_there_is_no_room_is_named_and_taken_in_later() -> None:
    site = site_of(nodes=(node(gpus=1),))
    for job_id in "12":
        site.runs[job_id] = SiteRun(job(job_id, milli=1000), (Gpu("n1", 0),))
    driver = driver_of(site)
    driver.step(1000)
    assert driver.unplaced == {"2": "it runs on n1:0, which is full"}
    site.end("1", RecordState.COMPLETED)
    driver.step(2000)
    assert (driver.unplaced, list(driver.scheduler.cluster.running)) == ({}, ["2"])


def test_a_site_that_starts_a_job_elsewhere_is_believed() -> None:
    site = site_of(job("1", milli=1000), job("2", milli=1000))
    site.lies = lambda start: start._replace(gpus=(Gpu("n1", 1),)) if start.job_id == "1" else start
    driver = driver_of(site)
    site.fails["2"] = "the GPU is taken"
    driver.step(1000)
    driver.step(1001)
    assert where(site) == {"1": ["n1:1"]}
    driver.step(3000)
    assert where(site) == {"1": ["n1:1"], "2": ["n1:0"]}


def test_a_job_that_fits_nowhere_holds_up_no_other_and_is_tried_when_nodes_change() -> None:
    site = site_of(job("1", gpus=4, milli=1000), job("2"))
    driver = driver_of(site)
    driver.step(1000)
    assert where(site) == {"2": ["n1:0"]}
    assert "could not hold it if nothing else ran" in site.why["1"]
    site.there["n2"] = node("n2", 4)
    driver.step(2000)
    driver.step(2001)
    assert where(site)["1"] == ["n2:0", "n2:1", "n2:2", "n2:3"]


def test_waiting_jobs_take_their_turn_by_what_the_first_end_of_their_kind_told() -> None:
    kinds = {"1": "short", "2": "long", "3": "short", "4": "long"}
    jobs = [job(each, milli=1000, application=kind, alike=kind) for each, kind in kinds.items()]
    site = site_of(*jobs, nodes=(node(gpus=1),))
    settings = Settings(policy="passing+longest-expected+worst-fit", knowledge="history?begin=empty")
    driver, now_ms, began = Driver(site, settings), 1000, []
    for _ in jobs:
        driver.step(now_ms)
        driver.step(now_ms)
        (running,) = site.runs
        began.append(running)
        now_ms += 10_000 if kinds[running] == "short" else 100_000
        site.now_ms = now_ms
        site.end(running, RecordState.COMPLETED)
    assert began == ["1", "2", "4", "3"]


def test_an_end_sorts_no_job_anew_of_which_nothing_else_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(*(job(job_id, milli=1000, alike="train") for job_id in "123"), nodes=(node(gpus=1),))
    driver, replaced = driver_of(site), list[Job]()
    driver.step(1000)
    monkeypatch.setattr(driver.scheduler, "replace", replaced.append)
    driver.step(1000)
    site.end("1", RecordState.COMPLETED)
    driver.step(2000)
    assert (where(site), replaced) == ({"2": ["n1:0"]}, [])


def test_jobs_alike_get_what_one_of_them_turned_out_to_need() -> None:
    site = site_of(*(job(job_id, milli=1000, alike="train") for job_id in "123"), nodes=(node(gpus=1),))
    driver = driver_of(site)
    driver.step(1000)
    site.end("1", RecordState.OUT_OF_MEMORY, needed_mib=8000)
    driver.step(2000)
    asked = [each.share.mem_mib for job_id in "123" if (each := driver.job(job_id))]
    assert asked == [9000, 9000, 9000]
    site.jobs["2"] = job("2", milli=1000, mem_mib=6000, alike="train")  # its user knows better
    driver.step(3000)
    assert (driver.job("2"), driver.job("3")) == (site.jobs["2"].job, site.jobs["3"].job)


def test_waiting_jobs_whose_memory_grows_are_promised_what_one_like_them_turned_out_to_use() -> None:
    grows = {"milli": 1000, "alike": "train", "mem_max_mib": CARD_MIB}
    site = site_of(*(job(job_id, **grows) for job_id in "123"), job("4", milli=1000), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="fifo+best-fit", knowledge="history"))
    driver.step(1000)
    site.end("1", RecordState.COMPLETED, peak_mib=8000)
    driver.step(2000)
    promised = [each.share.mem_mib for job_id in "34" if (each := driver.job(job_id))]
    queued = [each.share.mem_mib for job_id in "34" if (each := driver.scheduler.queue.named(job_id))]
    assert promised == queued
    assert 8000 < promised[0] < 8200  # a little above the one peak that was seen
    assert promised[1] == 5000
    assert site.runs["2"].share == Share(1000, promised[0])


def test_a_promise_is_never_less_than_what_the_job_asks_for() -> None:
    grows = {"milli": 1000, "alike": "train", "mem_max_mib": CARD_MIB}
    site = site_of(*(job(job_id, **grows) for job_id in "12"), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="fifo+best-fit", knowledge="history"))
    driver.step(1000)
    site.end("1", RecordState.COMPLETED, peak_mib=2000)
    driver.step(2000)
    assert site.runs["2"].share == Share(1000, 5000)


def test_named_gpus_are_heeded_whatever_the_policy_would_take() -> None:
    site = site_of(
        job("1", milli=1000, only_gpus=(Gpu("n1", 1),)), job("2", milli=1000), job("3", milli=1000)
    )
    driver_of(site).step(1000)
    assert where(site) == {"1": ["n1:1"], "2": ["n1:0"]}


def test_a_start_that_was_stopped_or_found_no_room_is_no_failure_of_the_job() -> None:
    site = site_of(job("1"))
    driver = driver_of(site)
    driver.step(1000)
    for at in range(20):
        run = site.runs.pop("1", None)
        site.jobs["1"] = site.jobs.get("1") or run.of
        site.told.append(FailedStart("1", "another took the GPU", no_room=True))
        driver.step(2000 + 100 * at)
    driver.step(9000)
    assert where(site) == {"1": ["n1:0"]}


class EvictingSite(MemorySite):
    def evict(self, job_id: str) -> None:
        self.end(job_id, RecordState.PREEMPTED)
        self.over.pop(job_id)


def test_a_job_makes_room_where_the_site_can_evict_and_runs_on_where_it_cannot() -> None:
    for kind, expected in ((EvictingSite, {"2": ["n1:0"]}), (MemorySite, {"1": ["n1:0"]})):
        site = site_of(job("1", milli=1000), nodes=(node(gpus=1),), kind=kind)
        driver = driver_of(site, "preempt+best-fit")
        driver.step(1000)
        site.jobs["2"] = job("2", milli=1000, priority=5)
        round_ = driver.step(2000)
        assert where(site) == expected
        assert bool(round_.refused) == (kind is MemorySite)


class ResizingSite(MemorySite):
    def resize(self, job_id: str, share: Share) -> None:
        self.runs[job_id] = replace(self.runs[job_id], share=share)


def grow(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
    """Start the first job, and give each running one its whole GPU."""
    yield from (Placement(each, (GpuSlot(0, 0),), each.share) for each in list(queue)[:1])
    yield from (Resize(run.job, Share(1000, CARD_MIB)) for run in list(cluster.running.values()))


def test_a_share_grows_where_the_site_can_resize_and_stays_where_it_cannot() -> None:
    for kind, share in ((ResizingSite, Share(1000, CARD_MIB)), (MemorySite, Share(500, 5000))):
        site = site_of(job("1"), nodes=(node(gpus=1),), kind=kind)
        driver = driver_of(site, f"{__name__}:grow")
        driver.step(1000)
        round_ = driver.step(2000)
        assert (site.runs["1"].share, driver.scheduler.cluster.running["1"].share) == (share, share)
        assert bool(round_.refused) == (kind is MemorySite)


def test_what_would_be_started_is_said_without_starting_it() -> None:
    site = site_of(job("1"), job("2", milli=1000, only_gpus=(Gpu("n1", 0),)), job("3", gpus=9))
    driver = driver_of(site)
    for _ in range(2):
        assert [each.job.id for each in driver.step(1000, for_real=False).placed] == ["2", "1"]
    assert (where(site), list(driver.misfits)) == ({}, ["3"])


def test_reasons_name_what_is_short_and_the_reservation() -> None:
    limit = {"time_limit_ms": 60_000, "milli": 1000}
    site = site_of(job("1", **limit), job("2", **limit), job("3", cpu_milli=20_000), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="easy+fifo+best-fit", knowledge="user"))
    driver.step(1000)
    site.jobs["4"] = job("4", gpus=0, mem_mib=0, cpu_milli=10_000)
    site.jobs["5"] = job("5", gpus=0, mem_mib=0, cpu_milli=10_000)
    driver.step(2000)
    reasons = driver.reasons()
    assert reasons["2"].text.startswith("waits for room; expected to start at ")
    assert reasons["2"].reserved_ms == 61_000
    assert reasons["5"].text == "waits for CPUs: 6 of 16 CPUs are free, 10 wanted; 1 job before it"


def test_each_waiting_job_has_a_start_interval_from_the_first_job_on() -> None:
    limit = {"time_limit_ms": 3_600_000, "milli": 1000}
    site = site_of(*(job(name, **limit) for name in "123"), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="easy+fifo+best-fit", knowledge="user"))
    driver.forecast(0)  # before the first step nothing is known
    driver.step(1000)
    assert driver.starts == {}
    driver.forecast(1000)
    second, third = driver.starts["2"], driver.starts["3"]
    assert (
        1000 < second.from_ms < 3_601_000 < second.to_ms <= 1000 + 1.6 * 3_600_000
    )  # wide, as none is judged
    assert second.from_ms < third.from_ms
    assert second.to_ms < third.to_ms
    told = driver.reasons()
    assert told["2"].text == f"waits for room; {starts_text(*second)}"
    assert (told["2"].starts, told["3"].starts) == (second, third)
    why = driver.why("3")
    assert why is not None
    assert why.reason.starts == third


def test_a_start_that_depends_on_a_run_time_of_which_nothing_is_known_is_said_to_be_unknown() -> None:
    site = site_of(*(job(name, milli=1000) for name in "12"), job("3", milli=1000), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="easy+fifo+best-fit", knowledge="history"))
    driver.step(1000)
    driver.forecast(1000)
    assert driver.starts == {}
    unknown = "start unknown: a running job has no time limit, and no job like it has ended yet"
    assert driver.reasons()["2"].text == f"waits for room; {unknown}"
    assert driver.reasons()["3"].text == f"waits for room; 1 job before it; {unknown}"

    for at in range(3):
        driver.knowledge.worked(site.jobs["2"].job, 3_600_000 + at, alone=True)  # type: ignore[attr-defined]
    driver.forecast(20_000)
    assert driver.reasons()["2"].text == f"waits for room; {starts_text(*driver.starts['2'])}"


def test_a_job_of_unknown_run_time_in_the_queue_makes_later_starts_unknown() -> None:
    limit = {"time_limit_ms": 3_600_000, "milli": 1000}
    site = site_of(job("1", **limit), job("2", milli=1000), job("3", **limit), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="fifo+best-fit", knowledge="history"))
    driver.step(1000)
    driver.forecast(1000)
    assert set(driver.starts) == {"2"}
    assert driver.reasons()["3"].text == (
        "waits for room; 1 job before it; start unknown: a job before it has no time limit, and no job like it has"
        " ended yet"
    )


def test_a_job_whose_nodes_are_down_waits_for_no_run_time() -> None:
    site = site_of(job("1", milli=1000), job("2", milli=1000), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="fifo+best-fit", knowledge="history"))
    driver.step(1000)
    site.states["n1"] = NodeState.DRAINED
    driver.step(2000)
    driver.forecast(2000)
    assert driver.reasons()["2"].text == "waits for a node that may run it"


def test_why_starts_are_unknown_looks_at_each_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(*(job(str(at), milli=1000) for at in range(50)), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="fifo+best-fit", knowledge="history"))
    for at in range(3):
        driver.knowledge.worked(site.jobs["2"].job, 3_600_000 + at, alone=True)  # type: ignore[attr-defined]
    driver.step(1000)
    driver.forecast(1000, out_of_time=lambda: True)
    believed: list[str] = []

    def noted(each: Job, knowledge: Knowledge) -> Spread | None:
        believed.append(each.id)
        return believed_run(each, knowledge)

    monkeypatch.setattr(wait_reasons, "believed_run", noted)
    assert {reason.unknown for reason in driver.reasons().values()} == {""}
    assert sorted(believed, key=int) == [str(at) for at in range(50)]


def test_start_intervals_are_kept_for_a_while_and_told_anew_only_when_they_have_moved() -> None:
    limit = {"time_limit_ms": 3_600_000, "milli": 1000}
    site = site_of(job("1", **limit), job("2", **limit), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="easy+fifo+best-fit", knowledge="user", forecast_ms=10_000))
    driver.step(1000)
    driver.forecast(1000)
    first = driver.starts
    driver.forecast(10_999)
    assert driver.starts is first
    driver.forecast(11_000)
    assert driver.starts is not first
    assert driver.starts["2"] == first["2"]
    driver.forecast(3_000_000)
    assert driver.starts["2"].from_ms > 3_000_000
    assert driver.starts["2"] != first["2"]


def test_what_a_site_is_told_of_a_start_is_never_past() -> None:
    limit = {"time_limit_ms": 3_600_000, "milli": 1000}
    site = site_of(job("1", **limit), job("2", **limit), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="easy+fifo+best-fit", knowledge="user", forecast_ms=3_600_000))
    driver.step(1000)
    driver.forecast(1000)
    from_ms, to_ms = driver.starts["2"]
    middle_ms = (from_ms + to_ms) // 2
    for now_ms, begins_ms in ((2000, from_ms), (middle_ms, middle_ms)):
        driver.step(now_ms)
        assert site.why["2"] == f"waits for room; {starts_text(begins_ms, to_ms)}"


def test_what_start_intervals_held_is_told_of_jobs_that_have_started() -> None:
    limit = {"time_limit_ms": 3_600_000, "milli": 1000}
    site = site_of(job("1", **limit), job("2", **limit), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="easy+fifo+best-fit", knowledge="user"))
    driver.step(1000)
    driver.forecast(1000)
    assert driver.forecasts_held(1000) == (0, 0)
    middle_ms = sum(driver.starts["2"]) // 2
    site.end("1", RecordState.COMPLETED)
    driver.step(middle_ms)
    assert driver.forecasts_held(middle_ms) == (1, 1)


def one_start_held() -> tuple[MemorySite, int]:
    """A site whose driver has told of one start, which held, and when that was."""
    limit = {"time_limit_ms": 3_600_000, "milli": 1000}
    site = site_of(job("1", **limit), job("2", **limit), nodes=(node(gpus=1),))
    driver = driver_of(site)
    driver.step(1000)
    driver.forecast(1000)
    middle_ms = sum(driver.starts["2"]) // 2
    site.end("1", RecordState.COMPLETED)
    driver.step(middle_ms)
    return site, middle_ms


def test_a_driver_to_come_goes_on_with_what_start_intervals_had_learned() -> None:
    site, now_ms = one_start_held()
    again = driver_of(site)
    kept = site.learned_starts
    again.step(now_ms)
    assert site.learned_starts is kept, "what was just read is not written again"
    other = driver_of(site, policy="sjf+best-fit")
    other.step(now_ms)
    assert again.forecasts_held(now_ms) == (1, 1)
    assert other.forecasts_held(now_ms) == (0, 0), "it has learned nothing of another policy's starts"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "17",
        '{"policy": "fifo+best-fit"}',
        '{"policy": "fifo+best-fit", "offset": 0.2, "judged": Infinity, "days": []}',
        '{"policy": "fifo+best-fit", "offset": 0.2, "judged": 1, "days": [[1e999, 1, 1]]}',
        "[" * 100_000,
        "\0",
    ],
)
def test_start_intervals_begin_anew_and_say_so_if_what_they_learned_cannot_be_read(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    site, now_ms = one_start_held()
    site.learned_starts = text
    driver = driver_of(site)
    driver.step(now_ms)
    assert driver.forecasts_held(now_ms) == (0, 0)
    (line,) = caplog.messages
    assert line.startswith("start intervals begin anew: what they had learned cannot be read (")


def test_no_date_is_said_where_nobody_knows_when_there_will_be_room() -> None:
    site = site_of(job("1", time_limit_ms=60_000), job("2", milli=1000, gpus=2), job("3", gpus=2, milli=1000))
    site.held = {Gpu("n1", 1): Share(1000, CARD_MIB)}
    driver = Driver(site, Settings(policy="easy+fifo+best-fit", knowledge="user"))
    driver.step(1000)
    driver.step(2000)
    assert driver.scheduler.policy.reserved_ms["2"] >= FOREVER_MS  # type: ignore[attr-defined]
    reason = driver.reasons()["2"]
    assert reason.text == "waits for room; it cannot start while 1 GPU is drained, lost or used by others"
    assert reason.reserved_ms is None


def test_reasons_name_the_job_that_room_is_kept_for() -> None:
    limit = {"time_limit_ms": 60_000, "milli": 1000}
    site = site_of(job("1", **limit), job("2", gpus=2, **limit), job("3", milli=1000, time_limit_ms=90_000))
    driver = Driver(site, Settings(policy="easy+fifo+best-fit", knowledge="user"))
    driver.step(1000)
    driver.step(2000)
    reasons = driver.reasons()
    assert reasons["2"].text.startswith("waits for room; expected to start at ")
    assert reasons["3"].text == "room is kept for job 2; 1 job before it"
    strict = driver_of(site_of(job("1", **limit), job("2", gpus=2, **limit), job("3", milli=1000)))
    strict.step(1000)
    assert strict.reasons()["3"].text == "there is room; the policy has not placed it; 1 job before it"


@pytest.mark.parametrize("times", [1, 3])
def test_a_job_that_its_site_forgets_for_a_while_runs_on(times: int) -> None:
    site = site_of(job("1"))
    driver = driver_of(site, missed_steps=2)
    driver.step(1000)
    driver.step(1001)
    run = site.runs.pop("1")
    records = [record for _ in range(times) for record in driver.step(2000).records]
    site.runs["1"] = run
    driver.step(3000)
    assert list(driver.scheduler.cluster.running) == ["1"]
    assert [record.state for record in records] == ([] if times == 1 else [RecordState.CANCELLED])


def observing(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[tuple[str, int, RecordState]]]:
    """A knowledge that learns, and what it is told of ends."""
    knowledge = make_knowledge("history", grows=True)
    seen: list[tuple[str, int, RecordState]] = []
    monkeypatch.setattr(
        knowledge, "observe", lambda record: seen.append((record.job_id, record.attempt, record.state))
    )
    return knowledge, seen


def test_a_job_that_is_queued_again_is_no_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    knowledge, seen = observing(monkeypatch)
    site = site_of(job("1", retries=3), job("2", gpus=9))
    driver = Driver(site, Settings(policy="fifo+best-fit"), knowledge)
    driver.step(1000)
    site.end("1", RecordState.OUT_OF_MEMORY, needed_mib=7000)
    driver.step(2000)
    assert seen == [("1", 1, RecordState.OUT_OF_MEMORY)]
    site.jobs["3"] = replace(job("3", milli=1000, gpus=2), attempt=2)
    driver.step(3000)
    del site.jobs["3"]
    driver.step(4000)
    assert seen[1:] == [("3", 2, RecordState.CANCELLED)]


def test_an_edited_job_is_no_longer_said_to_be_too_large() -> None:
    site = site_of(job("1", gpus=9))
    driver = driver_of(site)
    driver.step(1000)
    assert list(driver.misfits) == ["1"]
    site.jobs["1"] = job("1", version=1)
    driver.step(2000)
    assert (dict(driver.misfits), where(site)) == ({}, {"1": ["n1:0"]})


def test_an_eviction_that_a_site_cannot_do_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    knowledge, seen = observing(monkeypatch)
    site = site_of(replace(job("1", milli=1000), attempt=3), nodes=(node(gpus=1),))
    driver = Driver(site, Settings(policy="preempt+priority+best-fit"), knowledge)
    driver.step(1000)
    site.jobs["2"] = job("2", milli=1000, priority=5)
    for now_ms in (2000, 3000):
        round_ = driver.step(now_ms)
        assert (len(round_.refused), round_.evicted, round_.placed) == (1, [], [])
    assert (driver.scheduler.cluster.running["1"].attempt, driver.scheduler.attempt("1"), seen) == (3, 3, [])


def wakes_and_resizes(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
    """Ask to be woken, resize what runs, and start the first job."""
    yield WakeAt(now_ms + 5000)
    yield from (Resize(run.job, Share(500, 1000)) for run in list(cluster.running.values()))
    for each in list(queue)[:1]:
        if cluster.free.milli[0, 0] >= each.share.milli:
            yield Placement(each, (GpuSlot(0, 0),), each.share)


def test_a_policy_is_woken_when_it_wants_to_be() -> None:
    limit = {"time_limit_ms": 5000, "milli": 1000}
    site = site_of(job("1", **limit), nodes=(node(gpus=1),))
    driver = driver_of(site, f"{__name__}:wakes_and_resizes")
    driver.step(1000)
    driver.step(1001)
    site.jobs["2"] = job("2", **limit)
    round_ = driver.step(9000)
    assert driver.next_ms(9000) == 14_000
    assert "resize" in " ".join(round_.refused)
    assert driver.next_ms(20_000) is None


@pytest.mark.parametrize("for_real", [True, False])
def test_reservations_are_shown_however_they_were_decided(for_real: bool) -> None:
    whole = {"milli": 1000}
    site = site_of(job("1", time_limit_ms=900_000, **whole), job("9", time_limit_ms=5000, **whole))
    driver = driver_of(site, "easy+fifo+best-fit")
    driver.step(1000)
    driver.step(1001)
    for job_id, application in (("2", "train"), ("3", "tune")):
        site.jobs[job_id] = job(job_id, gpus=2, time_limit_ms=600_000, application=application, **whole)
    driver.step(2000, for_real=for_real)
    assert driver.reasons()["2"].reserved_ms == 901_000


def failing_for(monkeypatch: pytest.MonkeyPatch, application: str) -> Any:
    """A knowledge that fails when it is asked how long jobs of one application run."""
    knowledge = make_knowledge("user", grows=True)
    run_ms = type(knowledge).run_ms

    def fail(self: Any, asked: Job, *rest: Any) -> Any:
        if asked.application == application:
            raise KnowledgeError(f"nobody knows job '{asked.id}'")
        return run_ms(self, asked, *rest)

    monkeypatch.setattr(type(knowledge), "run_ms", fail)
    return knowledge


def test_a_job_of_which_the_knowledge_fails_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(job("1", application="bad", only_gpus=(Gpu("n1", 0),)), job("2"))
    driver = Driver(site, Settings(policy="fifo+best-fit"), failing_for(monkeypatch, "bad"))
    round_ = driver.step(1000)
    assert (round_.fault, list(where(site))) == (None, ["2"])
    assert "nobody knows job '1'" in driver.misfits["1"]
    assert "nobody knows job '1'" in site.why["1"]


def fails_later(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
    """Start the first job, and from two seconds on fail with an error of berth's own."""
    yield from (Placement(each, (GpuSlot(0, 0),), each.share) for each in list(queue)[:1])
    if now_ms >= 2000:
        raise ClusterError("the policy asked for no node")


def test_a_step_that_fails_returns_what_came_of_it_all_the_same() -> None:
    site = site_of(job("1"))
    driver = driver_of(site, f"{__name__}:fails_later")
    driver.step(1000)
    driver.step(1001)
    site.end("1", RecordState.COMPLETED)
    site.jobs["2"] = job("2")
    round_ = driver.step(2000)
    assert [(each.job_id, each.state) for each in round_.records] == [("1", RecordState.COMPLETED)]
    assert ([each.job.id for each in round_.placed], str(round_.fault)) == (
        ["2"], "the policy asked for no node",
    )  # fmt: skip


class NamingSite(MemorySite):
    named: frozenset[str] | None = None

    def changed(self) -> frozenset[str] | None:
        named, self.named = self.named, frozenset()
        return named


def test_what_changed_in_a_step_that_fails_is_taken_in_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(kind=NamingSite)
    driver = driver_of(site)
    driver.step(1000)
    site.jobs["1"], site.named = job("1"), frozenset("1")
    with monkeypatch.context() as patched:
        patched.setattr(driver.scheduler, "strangers", failing)
        site.held[Gpu("n1", 1)] = Share(100, 100)
        assert driver.step(2000).fault is not None
    driver.step(3000)
    assert list(where(site)) == ["1"]


def failing(*asked: Any) -> None:
    raise ClusterError("no such GPU")


def test_a_run_that_is_not_there_when_its_node_is_back_was_lost_with_it() -> None:
    site = site_of(job("1"), job("2"))
    driver = driver_of(site)
    driver.step(1000)
    driver.step(1001)
    site.states["n1"] = NodeState.LOST
    driver.step(2000)
    lost, site.states = site.runs.pop("1"), {}
    records = driver.step(3000).records
    assert [(each.job_id, each.state) for each in records] == [(lost.of.job.id, RecordState.NODE_FAIL)]
    assert list(driver.scheduler.cluster.running) == ["2"]
    site.told.append(End("1", RecordState.COMPLETED, 3500))
    assert driver.step(4000).records == []


def test_the_end_that_is_told_as_its_node_is_back_is_believed() -> None:
    site = site_of(job("1"))
    driver = driver_of(site)
    driver.step(1000)
    driver.step(1001)
    site.states["n1"] = NodeState.LOST
    driver.step(2000)
    del site.runs["1"]
    site.states = {}
    site.told.append(End("1", RecordState.COMPLETED, 2500))
    assert [each.state for each in driver.step(3000).records] == [RecordState.COMPLETED]


class Forgetful(User):
    """Fails when it is first told of a peak."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def measured(self, job: Job, peak_mib: int) -> None:
        self.heard.append(job.id)
        if len(self.heard) == 1:
            raise KnowledgeError("the file of peaks cannot be read")

    def recorded(self, profile: Profile) -> None:
        pass


def test_an_end_that_cannot_be_taken_in_loses_none_of_those_after_it() -> None:
    site = site_of(*(job(name, milli=250) for name in "123"))
    knowledge = Forgetful()
    driver = Driver(site, Settings(policy="fifo+best-fit"), knowledge)
    driver.step(0)
    assert sorted(driver.scheduler.cluster.running) == ["1", "2", "3"]
    for name in "123":
        site.end(name, RecordState.COMPLETED, peak_mib=100)
    first = driver.step(10)
    assert (str(first.fault), [each.job_id for each in first.records]) == (
        "the file of peaks cannot be read",
        ["1"],
    )
    assert [each.job_id for each in driver.step(20).records] == ["2", "3"]
    assert not driver.scheduler.cluster.running


class Told(tuple[SiteNode, ...]):
    """Nodes that know how often they were read."""

    reads: int = 0

    def __iter__(self) -> Iterator[SiteNode]:
        self.reads += 1
        return super().__iter__()


def test_nodes_are_read_again_only_if_the_site_tells_others() -> None:
    site = site_of(job("1"))
    first = Told(site.nodes())
    site.nodes = lambda: first
    driver = driver_of(site)
    driver.step(1)
    reads = first.reads
    assert reads
    driver.step(2)
    assert first.reads == reads
    site.nodes = lambda: Told([SiteNode(node("n2"), NodeState.UP)])
    driver.step(3)
    assert [each.name for each in driver.scheduler.cluster.nodes if each.gpus] == ["n2"]


def begun_of(seconds: int, mem_mib: int) -> Profile:
    usage = np.tile([0.3, mem_mib / CARD_MIB, 0.3, 0.0], (seconds, 1))
    return Profile("train", BEGUN, 0, "", CARD, 1000, usage)


def test_jobs_like_one_that_runs_share_the_other_card_once_enough_was_sampled_of_it() -> None:
    site = site_of(*(job(name, milli=1000, mem_mib=0) for name in "123"), kind=SamplingSite)
    driver = Driver(site, Settings(policy="pairs", knowledge="history"))
    for site.now_ms in (1000, 31_000):
        site.seen["1"] = begun_of(30, 5000)
        assert driver.step(site.now_ms).fault is None
        site.come_to_it()
    assert site.runs.keys() == {"1", "2", "3"}
    assert site.runs["2"].gpus == site.runs["3"].gpus != site.runs["1"].gpus


def test_a_run_of_an_unknown_application_is_looked_at_before_it_ends() -> None:
    """Three alike on two cards: two take them whole, as nothing was sampled in time, and the third waits."""
    site = site_of(*(job(name, milli=1000, mem_mib=0) for name in "123"), kind=SamplingSite)
    driver = Driver(site, Settings(policy="pairs", knowledge="history"))

    def step(now_ms: int) -> None:
        site.now_ms = now_ms
        done = driver.step(now_ms)
        assert done.fault is None
        site.come_to_it()

    step(1000)
    assert set(site.runs) == {"1"}  # the others wait for the first look at it
    assert driver.next_ms(1000) == 31_000
    assert driver.measured.keys() == {"1"}
    assert driver.reasons()["2"].obstacle == (
        "waits until job 1 has been measured for 30 s, because nothing is known of application 'train'"
    )
    site.seen.clear()
    step(31_000)
    assert site.asked_of == [(31_000, "1")]
    assert set(site.runs) == {"1", "2"}  # nothing was sampled of it: they wait no longer
    site.seen["1"] = begun_of(30, 5000)
    step(61_000)
    assert site.asked_of[-1][0] == 61_000
    assert driver.knowledge.profiles["train"].kind == BEGUN
    whole = replace(driver.knowledge.profiles["train"], kind="live")
    driver.knowledge.recorded(whole)  # type: ignore[attr-defined]
    asked = len(site.asked_of)
    step(200_000)
    assert len(site.asked_of) == asked  # a whole run is known
    assert not driver.measured
    assert driver.next_ms(200_000) is None


def test_jobs_alike_wait_for_no_look_at_a_site_that_samples_no_runs() -> None:
    site = site_of(job("1", milli=1000, mem_mib=0), job("2", milli=1000, mem_mib=0))
    Driver(site, Settings(policy="pairs", knowledge="history")).step(1000)
    site.come_to_it()
    assert set(site.runs) == {"1", "2"}
