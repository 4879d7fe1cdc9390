"""The Record of an attempt that ran for real, the same at every site: what was not measured is absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from berth.live.driver.site import End, Gpu
from berth.model import NO_GPU, Job, Reason, Record, RecordState, Share

UNKNOWN_END = "exit-unknown"
"""The `end_reason` of an attempt whose end is unknown."""
_REASONS = {
    RecordState.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    RecordState.TIMEOUT: Reason.TIME_LIMIT,
    RecordState.NODE_FAIL: Reason.NODE_LOST,
}


@dataclass(frozen=True, slots=True)
class Sampled:
    """What samples of a GPU saw of an attempt; each is empty if nothing was measured."""

    gpu_use: Sequence[float] = ()
    """Use of its GPUs as fractions."""
    gpu_mem: Sequence[float] = ()
    """GPU memory in use as fractions of what there is."""


def record_of(
    job: Job, end: End, *, attempt: int, queued_ms: int | None, start_ms: int | None, gpus: Sequence[Gpu], share: Share,
    gpu_model: str, card_mib: int, sampled: Sampled | None = None, name: str = "", comment: str = "", command: str = "",
    label: str = "", suspended_ms: int = 0,
) -> Record:  # fmt: skip
    """The record of an attempt on these GPUs, which have `card_mib` of memory each; `start_ms` is None if it never
    started."""
    sampled = sampled or Sampled()
    ran = start_ms is not None
    reason = _REASONS.get(end.state, Reason.NONE).value
    if end.state is RecordState.FAILED and end.cut_short:
        reason = UNKNOWN_END
    peak = min(1.0, end.peak_mib / card_mib) if end.peak_mib is not None and card_mib else None
    nodes = tuple(dict.fromkeys(gpu.node for gpu in gpus)) if ran else ()
    return Record(
        job_id=job.id, attempt=attempt, user=job.user, application=job.application,
        virtual_cluster=job.virtual_cluster, submit_ms=job.submit_ms,
        queued_ms=job.submit_ms if queued_ms is None else queued_ms, start_ms=start_ms, end_ms=end.end_ms,
        state=end.state, gpus=job.gpus,
        share=Share(share.milli, share.mem_mib or (card_mib if job.gpus and ran else 0)),
        cpu_milli=job.cpu_milli, mem_mib=job.mem_mib, nodes=nodes, gpu_model=gpu_model if job.gpus and ran else "",
        work_ms=None, gpu_use_mean=_mean(sampled.gpu_use), gpu_use_peak=max(sampled.gpu_use, default=None),
        gpu_mem_mean=_mean(sampled.gpu_mem), gpu_mem_peak=peak, name=name, node_count=len(nodes),
        time_limit_ms=job.time_limit_ms, comment=comment, command=command, exit_code=end.exit_code, end_reason=reason,
        label=label, suspended_ms=suspended_ms or None, cpu_used_ms=end.cpu_used_ms, mem_peak_mib=end.mem_peak_mib,
        gpu_slots=tuple(str(gpu) for gpu in gpus if gpu.index != NO_GPU) if ran else (),
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
