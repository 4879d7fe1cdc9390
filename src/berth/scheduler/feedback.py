"""What is reported to a knowledge, and what becomes of the errors that it raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import getattr_static

from berth.cluster import Cluster, Running
from berth.errors import KnowledgeError, in_one_line
from berth.knowledge import Knowledge, LearnsFromNeighbours, LearnsUnderWay, LearnsWork
from berth.model import WHOLE_GPU, Job, Profile, Record, RecordState


class Feedback:
    """Reports to a knowledge what happens, if it learns. What it raises is kept as the `fault`: what has happened has
    happened, whatever is made of it. In a trial reports are held until it is known whether it happened."""

    def __init__(self, knowledge: Knowledge, cluster: Cluster) -> None:
        self.fault: KnowledgeError | None = None
        """The first error since it was last taken."""
        self._knowledge = knowledge
        self._learns = knowledge.learns
        # Asked once: whether an object has all of a protocol is looked up anew each time.
        self._learns_work = knowledge if isinstance(knowledge, LearnsWork) else None
        self._learns_from_neighbours = knowledge if isinstance(knowledge, LearnsFromNeighbours) else None
        self._learns_under_way = knowledge if isinstance(knowledge, LearnsUnderWay) else None
        self._cluster = cluster
        self._holds = 0  # trials under way
        self._held: list[tuple[Callable[[], None], str, int]] = []  # what to report, of which job, and when

    def hold(self) -> None:
        """Hold all reports until `report_held` was called as often as this."""
        self._holds += 1

    def report_held(self) -> bool:
        """Report what was held, if nothing else holds it; whether there was any."""
        self._holds -= 1
        if self._holds or not self._held:
            return False
        held, self._held = self._held, []
        for report, job_id, now_ms in held:
            self.keep_errors_of(report, job_id, now_ms)
        return True

    def take_fault(self) -> KnowledgeError | None:
        """The fault, which is none from now on."""
        fault, self.fault = self.fault, None
        return fault

    def keep(self, error: KnowledgeError) -> None:
        """Keep an error as the fault, unless there is one."""
        self.fault = self.fault or error

    def ended(
        self,
        run: Running,
        how: RecordState,
        now_ms: int,
        done_us: int,
        *,
        held_mib: int = 0,
        neighbours: Sequence[tuple[Job, int]] = (),
        queued_ms: int | None = None,
    ) -> None:
        """Report that an attempt has ended, having done this work, as run time alone on the GPUs that the job asks for.

        `queued_ms` is when it was queued, None: when the job was submitted. `neighbours` are those on its GPUs,
        and what they hold, MiB.
        """
        if self._learns:
            self._report(
                lambda: self._ended(run, how, now_ms, done_us, held_mib, queued_ms), run.job.id, now_ms
            )
        if (learns := self._learns_from_neighbours) is not None:
            for job, its_mib in neighbours:
                self._report(partial(learns.neighbour_ran_out, job, its_mib), job.id, now_ms)

    def outlived(self, job: Job, ran_ms: int) -> None:
        """Report that a job has run for longer than was believed. Raises what the knowledge raises."""
        if not self._learns:
            return
        if self._holds:
            self._held.append((partial(self._knowledge.outlived, job, ran_ms), job.id, 0))
        else:
            self._knowledge.outlived(job, ran_ms)

    def wants_to_see(self, run: Running) -> bool:
        """Whether the knowledge would learn from a run before it ends, which is alone on its GPUs."""
        learns = self._learns_under_way
        return learns is not None and run.job.gpus > 0 and is_alone(run) and learns.wants_to_see(run.job)

    def sampled(self, run: Running, profile: Profile, now_ms: int) -> None:
        """Report what was sampled so far of a run that the knowledge wants to see."""
        if self._learns_under_way is not None:
            self._report(partial(self._learns_under_way.recorded, profile), run.job.id, now_ms)

    def never_started(self, job: Job, attempt: int, queued_ms: int | None, now_ms: int) -> None:
        """Report that an attempt was cancelled while it waited, or could not be started, and does not come again."""
        if self._learns:
            waited = _record(job, attempt, queued_ms, RecordState.CANCELLED, now_ms)
            self._report(lambda: self._knowledge.observe(waited), job.id, now_ms)

    def _report(self, report: Callable[[], None], job_id: str, now_ms: int) -> None:
        if self._holds:
            self._held.append((report, job_id, now_ms))
        else:
            self.keep_errors_of(report, job_id, now_ms)

    def _ended(
        self,
        run: Running,
        how: RecordState,
        now_ms: int,
        done_us: int,
        held_mib: int,
        queued_ms: int | None,
    ) -> None:
        knowledge, job = self._knowledge, run.job
        if how is RecordState.OUT_OF_MEMORY:
            knowledge.ran_out_of_memory(job, held_mib)
        if how is RecordState.COMPLETED and self._learns_work is not None:
            work_ms = max(1, done_us // 1000)
            self._learns_work.worked(job, work_ms, alone=is_alone(run))
        nodes = self._cluster.nodes
        model = nodes[run.slots[0].node].gpu_model
        knowledge.observe(
            _record(
                job,
                run.attempt,
                queued_ms,
                how,
                now_ms,
                run=run,
                nodes=tuple(dict.fromkeys(nodes[slot.node].name for slot in run.slots)),
                gpu_model=model.name if model and job.gpus else "",
            )
        )

    def keep_errors_of(self, report: Callable[[], None], job_id: str, now_ms: int) -> None:
        """Do what asks or tells the knowledge of a job that has ended; an error is kept as the fault."""
        try:
            report()
        except KnowledgeError as error:
            self.keep(error)
        except Exception as error:  # noqa: BLE001  someone else's code, and what it is told has happened
            fault = error_of_knowledge(error, self._knowledge, now_ms, job_id) or KnowledgeError(
                f"at {now_ms} ms the knowledge fails when it is told how job '{job_id}' ended: {in_one_line(error)}"
            )
            fault.__cause__ = error
            self.keep(fault)


def is_alone(run: Running) -> bool:
    """Whether a run has its GPUs whole, so that what is sampled there is its own."""
    return not run.best_effort and run.share.milli == WHOLE_GPU.milli


def error_of_knowledge(
    error: Exception, knowledge: Knowledge, now_ms: int, job_id: str | None = None
) -> KnowledgeError | None:
    """The error as the knowledge's, with the method and the job; None if it was raised in none of its methods."""
    step = error.__traceback__
    while step is not None:
        code, values = step.tb_frame.f_code, step.tb_frame.f_locals
        own = getattr(getattr_static(type(knowledge), code.co_name, None), "__code__", None) is code
        if own and values.get(code.co_varnames[0]) is knowledge:
            asked = next((value for value in values.values() if isinstance(value, Job)), None)
            of = asked.id if asked is not None else job_id
            about = "" if of is None else f" of job '{of}'"
            what = f"knowledge {type(knowledge).__qualname__} fails in {code.co_name}{about}"
            return KnowledgeError(f"at {now_ms} ms {what}: {in_one_line(error)}")
        step = step.tb_next
    return None


def _record(
    job: Job,
    attempt: int,
    queued_ms: int | None,
    how: RecordState,
    end_ms: int,
    *,
    run: Running | None = None,
    nodes: tuple[str, ...] = (),
    gpu_model: str = "",
) -> Record:
    """The record of an attempt; without a run, of one that has not started."""
    return Record(
        job_id=job.id,
        attempt=attempt,
        user=job.user,
        application=job.application,
        virtual_cluster=job.virtual_cluster,
        submit_ms=job.submit_ms,
        queued_ms=job.submit_ms if queued_ms is None else queued_ms,
        end_ms=end_ms,
        state=how,
        start_ms=None if run is None else run.start_ms,
        gpus=job.gpus,
        share=job.share if run is None else run.share,
        cpu_milli=job.cpu_milli,
        mem_mib=job.mem_mib,
        nodes=nodes,
        gpu_model=gpu_model,
        work_ms=None,
        time_limit_ms=job.time_limit_ms,
    )
