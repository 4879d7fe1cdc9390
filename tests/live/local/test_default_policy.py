"""What decides on one machine whose operator chose nothing."""

from __future__ import annotations

from berth.cluster import Cluster
from berth.knowledge import make_knowledge
from berth.live.driver.defaults import DEFAULT_KNOWLEDGE, MACHINE_POLICY
from berth.live.local.entry import Limits
from berth.live.local.request import request_of
from berth.model import GpuModel, Job, Node, Placement, Share
from berth.policies import Setting, make_policy
from berth.scheduler import Scheduler

CARD = GpuModel("A100-80G", mem_mib=80 << 10)


def _starts(*jobs: Job) -> dict[str, list[int]]:
    """The GPUs of each job that starts on a machine with four."""
    knowledge = make_knowledge(DEFAULT_KNOWLEDGE)
    policy = make_policy(MACHINE_POLICY, Setting(knowledge=knowledge))
    scheduler = Scheduler(Cluster([Node("here", 4, CARD, None, None)]), policy, knowledge)
    for job in jobs:
        scheduler.submit(job)
    started = [each for each in scheduler.decide(0) if isinstance(each, Placement)]
    return {each.job.id: [slot.index for slot in each.slots] for each in started}


def _sharing(name: str, mem_mib: int) -> Job:
    return Job(name, 0, None, gpus=1, share=Share(100, mem_mib), application=name)


def test_no_gpu_idles_while_two_jobs_share_another() -> None:
    starts = _starts(*(_sharing(f"job{at}", 8 << 10) for at in range(8)))
    gpus = sorted(gpu for slots in starts.values() for gpu in slots)
    assert gpus == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_job_goes_where_its_memory_fits_although_more_compute_is_left_elsewhere() -> None:
    full = [_sharing(f"full{at}", 76 << 10) for at in range(3)]
    lighter = [_sharing(f"light{at}", 10 << 10) for at in range(3)]
    starts = _starts(*full, *lighter)
    (gpu,) = {0, 1, 2, 3} - {starts[job.id][0] for job in full}
    assert [starts[job.id] for job in lighter] == [[gpu]] * 3


def test_jobs_with_memory_alone_count_for_what_the_queue_says_and_others_for_what_they_ask() -> None:
    few = Limits((80 << 10,), per_gpu=4)

    def counted(**flags: str) -> int:
        return few.milli_of(request_of(flags, argv=["true"], cwd="/", now_ms=0))

    assert (counted(mem="8G"), counted(mem="8G..20G")) == (250, 250)
    assert counted(mem="8G", core_pct="10") == counted(mem="8G", gpus="0.1") == 100
    assert counted() == 1000
    assert Limits().milli_of(request_of({"mem": "8G"}, argv=["true"], cwd="/", now_ms=0)) == 100
