"""This machine as a site of the driver: what the broker told of its jobs and GPUs, and what it is to be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from berth.knowledge.out_of_memory import MemoryNeed
from berth.live.card_models import card_model
from berth.live.driver.records import UNKNOWN_END
from berth.live.driver.site import (
    Again,
    End,
    FailedStart,
    GiveUp,
    Gpu,
    SiteGang,
    SiteJob,
    SiteNode,
    SiteRun,
    Start,
)
from berth.live.local.profile_recorder import begun_profile
from berth.live.local.samples import read_samples
from berth.model import NO_GPU, Job, Node, Profile, RecordState, Share


class BrokerSite:
    """A mirror of the broker's book, which the broker keeps true by its events."""

    name = "local"

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        say: Callable[[dict[str, Any]], None],
        *,
        can_suspend: bool = False,
        learned_starts: str = "",
        samples: str = "",
    ) -> None:
        """`nodes` are the machine: one for each kind of its GPUs, whose `indices` are those of the machine. `samples`
        is the folder into which the broker writes what runs use of them."""
        self._samples = samples
        self._say, self._can_suspend, self._learned_starts = say, can_suspend, learned_starts
        self._nodes = [
            SiteNode(
                Node(
                    name=node["name"],
                    gpus=node["gpus"],
                    gpu_model=card_model(node["model"], node["card_mib"]) if node["gpus"] else None,
                    cpu_milli=node["cpu_milli"],
                    mem_mib=node["mem_mib"],
                )
            )
            for node in nodes
        ]
        gpus = [Gpu(node["name"], index) for node in nodes for index in range(node["gpus"])]
        indices = [index for node in nodes for index in node.get("indices", ())]
        self.gpus = [gpu for _, gpu in sorted(zip(indices, gpus, strict=True))] if indices else gpus
        """By their index on the machine."""
        self._index_of = {gpu: index for index, gpu in enumerate(self.gpus)}
        self._waiting: dict[str, SiteJob] = {}
        self._running: dict[str, SiteRun] = {}
        self._starts: dict[str, int | None] = {}
        """Of each job that runs, the number of its start, which its samples are named by; None from an older broker."""
        self._others: dict[Gpu, Share] = {}
        self._ended: list[End | FailedStart] = []
        self._changed: set[str] = set()
        self._ended_tasks: dict[str, int] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        what = event["event"]
        if what == "waits":
            job = self._job(event["job"])
            self._running.pop(job.job.id, None)
            self._waiting[job.job.id] = job
            self._changed.add(job.job.id)
        elif what == "runs":
            job = self._job(event["job"])
            self._waiting.pop(job.job.id, None)
            before = self._running.get(job.job.id)
            self._starts = {name: at for name, at in self._starts.items() if name in self._running}
            self._starts[job.job.id] = event.get("start")
            self._running[job.job.id] = SiteRun(
                job,
                tuple(self.gpus[at] for at in event["slots"]),
                nodes=before.nodes if before is not None else (self._nodes[0].node.name,),
                share=Share(*event["share"]),
                best_effort=bool(event["best_effort"]),
                start_ms=event["start_ms"],
                started=bool(event["started"]),
                suspended_since_ms=event["suspended_since_ms"],
                suspended_ms=event["suspended_ms"],
                parked_mib=event["parked_mib"],
                resumes=bool(event["resumes"]),
            )
            self._changed.add(job.job.id)
        elif what == "others":
            for at, milli, mem_mib in event["slots"]:
                self._others[self.gpus[at]] = Share(milli, mem_mib)
        elif what == "withdrawn":
            self._waiting.pop(event["id"], None)
            self._running.pop(event["id"], None)
            self._changed.add(event["id"])
        elif what == "gang":
            self._ended_tasks[event["gang"]] = event["ended"]
        elif what == "start-failed":
            self._changed.add(event["id"])
            self._ended.append(FailedStart(event["id"], event["why"], bool(event["no_room"])))
        elif what == "ended":
            self._changed.add(event["id"])
            self._waiting.pop(event["id"], None)
            self._ended.append(self._end(event))

    def _end(self, event: Mapping[str, Any]) -> End:
        how = event["how"]
        return End(
            event["id"], RecordState.FAILED if how == UNKNOWN_END else RecordState(how), event["end_ms"],
            event["attempt"], event["why"], cut_short=how in (UNKNOWN_END, RecordState.NODE_FAIL),
            needed_mib=event["needed_mib"], peak_mib=event["peak_mib"], cpu_used_ms=event["cpu_ms"],
            mem_peak_mib=event["mem_peak_mib"], exit_code=event["exit_code"], ran=self._running.pop(event["id"], None),
        )  # fmt: skip

    def _job(self, values: Mapping[str, Any]) -> SiteJob:
        job = Job(
            id=values["id"], submit_ms=values["submit_ms"], work_ms=None, user=values["user"],
            application=values["application"], gpus=values["gpus"], share=Share(*values["share"]),
            cpu_milli=values["cpu_milli"], mem_mib=values["mem_mib"], priority=values["priority"],
            time_limit_ms=values["time_limit_ms"], estimate_ms=values["estimate_ms"], retries=values["retries"],
        )  # fmt: skip
        return SiteJob(
            job, tuple(values["order"]), values["attempt"], values["queued_ms"], MemoryNeed(*values["memory"]),
            tuple(values["alike"]), tuple(self.gpus[at] for at in values["only_gpus"] if at < len(self.gpus)),
            values["start_failures"], values["not_before_ms"], values["rerun"], values["why"], values["version"],
            SiteGang(*values["gang"]) if values.get("gang") else None,
            mem_max_mib=values.get("mem_max_mib", 0),
        )  # fmt: skip

    # What there is

    def nodes(self) -> Sequence[SiteNode]:
        return self._nodes

    def waiting(self) -> Mapping[str, SiteJob]:
        return self._waiting

    def running(self) -> Mapping[str, SiteRun]:
        return self._running

    def others(self) -> Mapping[Gpu, Share]:
        return self._others

    def ended(self) -> Sequence[End | FailedStart]:
        ended, self._ended = self._ended, []
        return ended

    def changed(self) -> Set[str]:
        changed, self._changed = self._changed, set()
        return changed

    def ended_tasks(self, gang: str) -> int:
        return self._ended_tasks.get(gang, 0)

    def sampled(self, job_id: str) -> Profile | None:
        run, start = self._running.get(job_id), self._starts.get(job_id)
        models = {each.node.name: each.node.gpu_model for each in self._nodes}
        if run is None or start is None or len(run.gpus) != 1 or (card := models[run.gpus[0].node]) is None:
            return None
        return begun_profile(run.of.job.application, card, read_samples(self._samples, f"{job_id}-{start}"))

    # What the broker is to do

    def start(self, start: Start) -> None:
        job = self._waiting.pop(start.job_id)
        self._running[start.job_id] = SiteRun(
            job,
            tuple(gpu for gpu in start.gpus if gpu.index != NO_GPU),
            nodes=start.nodes,
            share=start.share,
            best_effort=start.best_effort,
            started=False,
        )
        slots = [self._index_of[gpu] for gpu in start.gpus if gpu.index != NO_GPU]
        self._say({
            "say": "start", "id": start.job_id, "version": start.version, "slots": slots, "share": start.share,
            "best_effort": start.best_effort, "peak_mib": start.peak_mib,
        })  # fmt: skip

    def evict(self, job_id: str) -> None:
        self._say({"say": "evict", "id": job_id})

    def parked_mib(self, job_id: str) -> int | None:
        """What a job was given of each of its GPUs; None if the machine cannot suspend it."""
        run = self._running[job_id]
        if not self._can_suspend or not run.gpus or run.share is None or run.of.gang is not None:
            return None
        models = {each.node.name: each.node.gpu_model for each in self._nodes}
        model = models[run.gpus[0].node]
        return run.share.mem_mib or (model.mem_mib if model is not None else 0)

    def suspend(self, job_id: str) -> None:
        self._say({"say": "suspend", "id": job_id})

    def resume(self, job_id: str) -> None:
        self._say({"say": "resume", "id": job_id})

    def again(self, again: Again) -> None:
        self._running.pop(again.job_id, None)
        self._say({"say": "again", **again._asdict()})

    def give_up(self, given_up: GiveUp) -> None:
        self._running.pop(given_up.job_id, None)
        self._say({"say": "give-up", "job_id": given_up.job_id, "why": given_up.why})

    def remember(self, job_id: str, memory: MemoryNeed) -> None:
        self._say({"say": "remember", "job_id": job_id, "needs_mib": memory.mib})

    @property
    def learned_starts(self) -> str:
        """What the broker keeps for the next brain."""
        return self._learned_starts

    @learned_starts.setter
    def learned_starts(self, text: str) -> None:
        self._learned_starts = text
        self._say({"say": "learned-starts", "text": text})

    def note(self, job_id: str, why: str) -> None:
        """Nothing is noted: the broker asks for wait reasons on request."""
