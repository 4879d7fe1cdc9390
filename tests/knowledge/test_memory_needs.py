"""What a job needs of GPU memory after one like it ran out."""

from __future__ import annotations

from berth.knowledge.memory_needs import MemoryNeeds
from berth.knowledge.out_of_memory import NO_NEED, MemoryNeed
from berth.model import Job, Share

JOB = Job("a", 0, None, user="u", application="a", gpus=1, share=Share(500, 1000), retries=3)


def test_the_gpus_of_a_cluster_are_listed_only_for_jobs_like_one_that_ran_out() -> None:
    listed: list[int] = []

    def cards_mib() -> list[int]:
        listed.append(8000)
        return [8000]

    needs = MemoryNeeds()
    assert needs.of(JOB, "a", NO_NEED, cards_mib) == NO_NEED
    assert listed == []
    needs.learn("a", MemoryNeed(1, 2000))
    assert needs.of(JOB, "a", NO_NEED, cards_mib).mib == 2000
    assert listed == [8000]
