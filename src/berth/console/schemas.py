"""What the API answers, as types that its OpenAPI document tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from berth.history.jobs.job_report import Wait
from berth.live.driver.snapshot import LiveJob


def _encodable(text: str) -> str:
    """The text itself; raises ValueError if it has half of a surrogate pair or a NUL, which no program takes."""
    if b"\0" in text.encode():
        raise ValueError("there is a NUL in it")
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class TenantAnswer(BaseModel, from_attributes=True):
    """One job on a GPU."""

    job: str
    user: str
    milli: int = Field(description="Compute promised to it, in thousandths of the GPU")
    mem_mib: int = Field(description="GPU memory promised to it")
    used_mib: int | None
    use_pct: float | None
    since_ms: int | None
    measured: bool = Field(description="Whether its use is measured because its application is unknown")


class StrangerAnswer(BaseModel, from_attributes=True):
    """What is on a GPU without being a job."""

    what: str
    mem_mib: int


class GpuAnswer(BaseModel, from_attributes=True):
    """One GPU as every viewer may see it: whose jobs are there, and nothing of what they are."""

    source: str = ""
    node: str
    index: int
    model: str
    mem_mib: int
    used_mib: int | None = Field(description="GPU memory in use; null if it is not measured")
    use_pct: float | None
    health: str = Field(description="What is wrong with it; empty if nothing is")
    drained: bool
    rack: str
    partition: str
    tenants: list[TenantAnswer]
    strangers: list[StrangerAnswer]


class GpusAnswer(BaseModel):
    """All GPUs at one moment."""

    boot: str
    version: int
    now_ms: int
    gpus: list[GpuAnswer]


@dataclass(frozen=True, slots=True)
class QueuedJob(LiveJob):
    """One job that waits or runs; its name is empty where the viewer does not own it."""

    source: str = ""


class QueueAnswer(BaseModel):
    """One page of the jobs that were asked for."""

    total: int
    page: int
    size: int
    now_ms: int
    jobs: list[QueuedJob]

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return max(1, -(-self.total // self.size))


class SourceAnswer(BaseModel):
    """A queue that the console looks at."""

    name: str
    here: bool
    why: str = Field(description="Why it is not there; empty if it is")
    since_ms: int
    at_ms: int | None
    gpus: int
    waiting: int
    running: int
    policy: str
    notes: list[str]


class PointAnswer(BaseModel):
    """One sample of a job's GPUs."""

    time_ms: int
    use_pct: float | None = None
    mem_mib: int | None = None


class AttemptAnswer(BaseModel):
    """One attempt that has ended."""

    attempt: int
    state: str
    start_ms: int | None = None
    end_ms: int | None = None
    exit_code: int | None = None
    reason: str = ""
    where: str = ""
    peak_mib: float | None = None
    given_mib: int | None = None
    refused: int | None = Field(None, description="Calls for GPU memory that were refused")


class EndingAnswer(BaseModel):
    """What a job that has ended used of what it was promised, waited for and cost."""

    waits: list[Wait]
    used_mib: int | None = Field(description="Peak of its memory on one GPU")
    promised_mib: int | None
    card_mib: int | None
    use_pct: float | None = Field(description="Mean use of each of its GPUs, of a whole GPU")
    promised_pct: float | None = Field(description="null: it took the compute that others left")
    enough_gpu: float | None = Field(description="The part of a GPU that would have been enough")
    enough_mib: int | None = Field(
        description="The GPU memory that would have been enough; null if no less would"
    )
    gpu_hours: float
    idle_gpu_hours: float | None
    such_jobs: int = Field(0, description="Starts of such jobs that the next two numbers stand on")
    half_start_s: float | None = Field(None, description="Within which half of them started")
    most_start_s: float | None = Field(None, description="Within which nine of ten started")


class JobAnswer(BaseModel):
    """All of one job that the viewer may see; what others may not see is null."""

    source: str
    id: str
    user: str
    state: str
    own: bool = False
    controls: bool = False
    name: str = ""
    application: str = ""
    reason: str = ""
    gpus: int = 0
    milli: int = 1000
    mem_mib: int = 0
    cpu_milli: int | None = None
    host_mem_mib: int | None = None
    priority: int = 0
    time_limit_ms: int | None = None
    submit_ms: int | None = None
    ready_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    attempt: int = 1
    where: str = ""
    partition: str = ""
    neighbours: list[str] = Field([], description="The other jobs on its GPUs")
    command: str | None = None
    folder: str | None = None
    comment: str | None = None
    output: str | None = Field(None, description="The last lines that it wrote")
    output_path: str | None = None
    attempts: list[AttemptAnswer] = []
    series: list[PointAnswer] = []
    why: list[str] = Field([], description="Why it waits: policy, candidates, what stands in the way")
    candidates: list[dict[str, Any]] = Field(
        [], description="GPUs that the policy looked at, with what they lack"
    )
    starts_from_ms: int | None = Field(
        None, description="The predicted start: the earlier end of its interval"
    )
    starts_to_ms: int | None = None
    ending: EndingAnswer | None = None
    others: list[str] = Field([], description="The other tasks of its array")
    history: list[dict[str, Any]] = Field(
        [],
        description="What the history knows of jobs of this id; `neighbours` are the jobs that shared its GPUs",
    )


class ActionRequest(BaseModel, extra="forbid"):
    """A requested change."""

    source: Text = Field(max_length=64)
    action: Text = Field(max_length=64)
    id: Text = Field("", max_length=256, description="The job, the GPU (NODE:INDEX) or the partition")
    value: Annotated[Text, Field(max_length=256)] | int | None = Field(
        None, description="The new priority, policy or size"
    )


class SubmitRequest(BaseModel, extra="forbid"):
    """A job to be queued."""

    source: Text = Field(max_length=64)
    command: Text = Field(min_length=1, max_length=4096, description="A line for the shell, or a script")
    gpus: Text = Field("", max_length=32, description="Number of GPUs, or a part of one such as 0.5; 0: none")
    mem: Text = Field("", max_length=32, description="GPU memory on each GPU, such as 8G")
    time: Text = Field("", max_length=32, description="Time limit, such as 2:00:00 or 30 (minutes)")
    name: Text = Field("", max_length=200)
    folder: Text = Field("", max_length=1024, description="Where it runs; the user's home by default")


class SubmitAnswer(BaseModel):
    """A job that was queued."""

    id: str
    command: str


class ActionAnswer(BaseModel):
    """What was done."""

    done: str
    command: str
