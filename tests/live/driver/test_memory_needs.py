"""What a job needs of GPU memory after one like it ran out."""

from __future__ import annotations

from berth.knowledge.out_of_memory import MemoryNeed
from berth.live.driver.memory_needs import MemoryNeeds
from berth.live.driver.site import SiteJob
from berth.model import Job, Share


def waiting(job_id: str, *, memory: MemoryNeed | None = None) -> SiteJob:
    job = Job(job_id, 0, None, user="u", application="a", gpus=1, share=Share(500, 1000), retries=3)
    more = {} if memory is None else {"memory": memory}
    return SiteJob(job, (0,), alike="a", **more)


def test_the_gpus_of_a_cluster_are_listed_only_for_jobs_like_one_that_ran_out() -> None:
    asked: list[str] = []

    def cards_mib(job: SiteJob) -> list[int]:
        asked.append(job.job.id)
        return [8000]

    needs = MemoryNeeds()
    first = waiting("first")
    assert needs.of(first, cards_mib) == first.memory
    assert asked == []
    needs.learn(waiting("ran-out", memory=MemoryNeed(1, 2000)))
    assert needs.of(waiting("next"), cards_mib).mib == 2000
    assert asked == ["next"]
