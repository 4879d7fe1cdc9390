"""An urgent job takes the place of one that matters less, which is suspended rather than stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from berth.live.driver.driver import Driver, Settings
from berth.live.driver.site import SiteJob, SiteRun
from berth.model import Job, RecordState, Share
from tests.live.driver.memory_site import GangSite
from tests.live.driver.test_driver import node


def job(job_id: str, priority: int = 0) -> SiteJob:
    return SiteJob(Job(job_id, 0, None, priority=priority, share=Share(1000, 0)), (int(job_id),))


def world(*, unkind: bool = False) -> tuple[GangSite, Driver]:
    site = GangSite({"n1": node(gpus=1)}, unkind=unkind)
    return site, Driver(site, Settings(policy="preempt+priority+best-fit", knowledge="user"))


def steps(site: GangSite, driver: Driver, now_ms: int) -> list[str]:
    """What is told to the site until it has come to rest."""
    found: list[str] = []
    for _ in range(9):
        site.now_ms = now_ms
        done = driver.step(now_ms)
        assert done.fault is None
        found += [f"suspend {each}" for each in done.suspended] + [f"resume {each}" for each in done.resumed]
        found += [f"start {each.job.id}" for each in done.placed] + [f"evict {each}" for each in done.evicted]
        site.come_to_it()
    return found


@pytest.mark.parametrize("unkind", [False, True])
def test_an_urgent_job_suspends_one_that_runs_on_after_it(unkind: bool) -> None:
    site, driver = world(unkind=unkind)
    site.jobs = {"1": job("1")}
    assert steps(site, driver, 1000) == ["start 1"]
    site.jobs = {"2": job("2", priority=5), "3": job("3")}
    assert steps(site, driver, 2000) == ["suspend 1", "start 2"]
    assert site.runs["1"].suspended
    site.end("2", RecordState.COMPLETED)
    assert steps(site, driver, 3000) == ["resume 1"], "it comes before those that wait"
    assert (site.runs["1"].suspended, site.runs["1"].suspended_ms) == (False, 1000)
    assert "3" in site.jobs


def test_what_the_site_cannot_suspend_is_stopped_as_before() -> None:
    site, driver = world()
    site.parked_mib = lambda job_id: None  # type: ignore[method-assign]
    site.jobs = {"1": job("1")}
    steps(site, driver, 1000)
    site.jobs = {"2": job("2", priority=5)}
    assert sorted(steps(site, driver, 2000)) == ["evict 1", "start 2"]


def test_more_urgent_jobs_come_before_a_suspended_one_and_it_is_not_moved_to_and_fro() -> None:
    site, driver = world()
    site.jobs = {"1": job("1")}
    steps(site, driver, 1000)
    site.jobs = {"2": job("2", priority=5), "3": job("3", priority=4)}
    assert steps(site, driver, 2000) == ["suspend 1", "start 2"]
    site.end("2", RecordState.COMPLETED)
    assert steps(site, driver, 3000) == ["start 3"]
    site.end("3", RecordState.COMPLETED)
    assert steps(site, driver, 4000) == ["resume 1"]


def test_a_new_driver_goes_on_with_what_is_suspended() -> None:
    site, driver = world()
    site.jobs = {"1": job("1"), "9": job("9")}
    steps(site, driver, 1000)
    site.jobs["2"] = job("2", priority=5)
    steps(site, driver, 2000)
    driver = Driver(site, driver.settings)
    assert steps(site, driver, 3000) == []
    assert list(driver.scheduler.cluster.suspended) == ["1"]
    site.end("2", RecordState.COMPLETED)
    assert steps(site, driver, 4000) == ["resume 1"]


def test_a_site_that_suspends_and_resumes_by_itself_is_followed() -> None:
    site, driver = world()
    site.jobs = {"1": job("1")}
    steps(site, driver, 1000)
    run: SiteRun = site.runs["1"]
    site.runs["1"] = replace(run, suspended_since_ms=1500, resumes=False, parked_mib=70_000)
    assert steps(site, driver, 2000) == []
    assert list(driver.scheduler.cluster.suspended) == ["1"], (
        "there is no such memory, and it is so all the same"
    )
    site.runs["1"] = run
    assert steps(site, driver, 3000) == []
    assert (list(driver.scheduler.cluster.running), driver.unplaced) == (["1"], {})
