"""The jobs that Slurm has, as `squeue -O` prints them in one cheap query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from berth.errors import LiveError
from berth.history.values.durations import slurm_s
from berth.history.values.tres import Resources, indices, resources

FIELD = "\x1f"
"""What ends a field, with a mark of the query behind it: names and comments are their users' and may hold anything."""
ROW = "\x1e"
"""What ends a row: a comment may hold line breaks."""

WHOLE_NODES = {"Exclusive": ("NODE", "TOPO"), "OverSubscribe": ("NO",)}
"""The column in which `--exclusive` shows, the newest first, and how. Slurm 26.05 took it out of OverSubscribe, which
is NO for any job since."""
_NOTHING = frozenset({"", "(null)", "N/A", "None", "NONE", "Unknown"})
MOST_TASKS = 1_000_000
"""A row with more tasks than this is taken to be broken; Slurm's own limit is 4,000,001."""


def text_of(text: str) -> str:
    """A field; empty where Slurm prints one of its words for nothing."""
    return "" if text in _NOTHING else text


def _number(text: str) -> int:
    """A number; of a range such as `2-4` nodes the first."""
    head = text.partition("-")[0]
    if head.endswith("K"):
        return int(float(head[:-1]) * 1024)
    return 0 if head in _NOTHING else int(float(head))


def _ms(text: str) -> int | None:
    return None if text in _NOTHING else int(text) * 1000


def _limit_ms(text: str) -> int | None:
    limit_s = slurm_s(text)
    return None if limit_s is None else 1000 * limit_s


def _of(column: str, read: Callable[[str], object] = str) -> Any:
    """A field that is read from a column of `squeue -O`."""
    return {"column": column, "read": read}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job, a task of an array, or all tasks of an array that wait and are still one row."""

    id: str
    """What people and `scontrol` call it: `12`, `12_3`, `7+1`."""
    raw_id: str = field(metadata=_of("JobID"))
    """Its number in the accounting (`JobIDRaw`)."""
    state: str = field(metadata=_of("State"))
    reason: str = field(metadata=_of("Reason"))
    user: str = field(metadata=_of("UserName"))
    account: str = field(metadata=_of("Account", text_of))
    qos: str = field(metadata=_of("QOS", text_of))
    partition: str = field(metadata=_of("Partition"))
    name: str = field(metadata=_of("Name"))
    comment: str = field(metadata=_of("Comment", text_of))
    admin_comment: str = field(metadata=_of("admin_comment", text_of))
    command: str = field(metadata=_of("Command", text_of))
    priority: int = field(metadata=_of("PriorityLong", _number))
    nice: int = field(metadata=_of("Nice", lambda text: int(text or 0)))
    submit_ms: int = field(metadata=_of("SubmitTime", lambda text: _ms(text) or 0))
    eligible_ms: int | None = field(metadata=_of("EligibleTime", _ms))
    start_ms: int | None = field(metadata=_of("StartTime", _ms))
    """When it began, or when Slurm expects it to begin."""
    end_ms: int | None = field(metadata=_of("EndTime", _ms))
    """When it ended, or must have ended."""
    time_limit_ms: int | None = field(metadata=_of("TimeLimit", _limit_ms))
    nodes: int = field(metadata=_of("NumNodes", _number))
    tasks: int = field(metadata=_of("NumTasks", _number))
    node_list: str = field(metadata=_of("NodeList", text_of))
    req_nodes: str = field(metadata=_of("ReqNodes", text_of))
    tres: Resources = field(metadata=_of("tres-alloc", resources))
    """What it has, or of a waiting job what it asks for besides GPUs."""
    tres_per_node: str = field(metadata=_of("tres-per-node", text_of))
    tres_per_job: str = field(metadata=_of("tres-per-job", text_of))
    tres_per_task: str = field(metadata=_of("tres-per-task", text_of))
    tres_per_socket: str = field(metadata=_of("tres-per-socket", text_of))
    features: str = field(metadata=_of("Feature", text_of))
    dependency: str = field(metadata=_of("Dependency", text_of))
    reservation: str = field(metadata=_of("Reservation", text_of))
    exclusive: bool
    restarts: int = field(metadata=_of("RestartCnt", _number))
    array_tasks: tuple[int, ...] = ()
    """The tasks that this row stands for; empty if it is one job."""
    array_limit: int | None = None
    """The most tasks of its array that may run at once."""
    het: bool = False
    """Whether it is a component of a heterogeneous job."""
    nodes_vary: bool = False
    """Whether it takes more nodes than the `nodes` that it asks for at least."""

    @property
    def waits(self) -> bool:
        return self.state == "PENDING"

    @property
    def runs(self) -> bool:
        """Whether it holds nodes, completing and configuring included."""
        return self.state in _HOLDING

    @property
    def ended(self) -> bool:
        return not self.waits and not self.runs

    @property
    def held(self) -> bool:
        return self.waits and (self.reason.startswith("JobHeld") or self.priority == 0)

    @property
    def het_id(self) -> str:
        """The number of its heterogeneous job, which is that of the first component; empty for a job of its own."""
        return self.id.partition("+")[0] if self.het else ""

    @property
    def array_id(self) -> str:
        """The id of its array; empty for a job of its own."""
        head, mark, _ = self.id.partition("_")
        return head if mark else ""


_READ = [
    (each.name, each.metadata["column"], each.metadata["read"]) for each in fields(SlurmJob) if each.metadata
]
COLUMNS = ("JobArrayID", "HetJobID", "OverSubscribe", *(column for _, column, _ in _READ))
"""What is asked of `squeue -O`, in this order."""
_HOLDING = frozenset({
    "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING", "STAGE_OUT", "SIGNALING", "STOPPED",
})  # fmt: skip


def format_of(columns: Sequence[str] = COLUMNS, mark: str = "") -> str:
    """The argument of `squeue -O`: a field's length is not limited if it has text behind it.

    `mark` is a text that no user can know beforehand, so that no name of a job makes fields or rows of its own.
    """
    marks = [FIELD + mark] * (len(columns) - 1) + [ROW + mark]
    return ",".join(f"{name}:{mark}" for name, mark in zip(columns, marks, strict=True))


def rows_of(text: str, columns: Sequence[str] = COLUMNS, mark: str = "") -> Iterator[list[str]]:
    """The fields of each row that `squeue -h -O format_of(columns, mark)` prints; LiveError for a row of others."""
    for row in text.split(ROW + mark):
        row = row.strip("\n ")
        if not row:
            continue
        fields = row.split(FIELD + mark)
        if len(fields) != len(columns):
            raise LiveError(
                f"squeue printed a row of {len(fields)} fields, expected {len(columns)}: {row[:80]!r}; is it of a"
                " Slurm before 22.05? See `berth slurm check`"
            )
        yield fields


def jobs_of(
    text: str,
    mark: str = "",
    unreadable: Callable[[str], None] | None = None,
    *,
    exclusive: str = "OverSubscribe",
) -> Iterator[SlurmJob]:
    """The rows that `squeue -h -a -O` prints, with times as seconds (SLURM_TIME_FORMAT=%s).

    A row that cannot be read is passed over, and `unreadable` is called with the reason: it must not hide all other
    jobs. `exclusive` is the column of WHOLE_NODES that was asked for. Raises LiveError for a row of another number of
    fields, and where `unreadable` is None.
    """
    for cells in rows_of(text, COLUMNS, mark):
        try:
            yield _job(cells, WHOLE_NODES[exclusive])
        except ValueError as error:
            why = f"squeue printed of job {cells[0]} what cannot be read: {error}"
            if unreadable is None:
                raise LiveError(why) from error
            unreadable(why)


def _job(cells: Sequence[str], whole: Sequence[str]) -> SlurmJob:
    of = dict(zip(COLUMNS, cells, strict=True))
    head, bracket, rest = of["JobArrayID"].partition("_[")
    spans, _, at_once = rest.rstrip("]").partition("%")
    waiting = indices(spans) if bracket else ()
    if len(waiting) > MOST_TASKS:
        raise ValueError(f"an array of {len(waiting):,} tasks")
    return SlurmJob(
        **{name: read(of[column]) for name, column, read in _READ},
        id=f"{head}_" if bracket else of["JobArrayID"],
        exclusive=of["OverSubscribe"] in whole,
        array_tasks=waiting,
        array_limit=int(at_once) if at_once else None,
        het=text_of(of["HetJobID"]) not in ("", "0"),
        nodes_vary=len(set(of["NumNodes"].split("-"))) > 1,
    )


def tasks_of(jobs: Iterable[SlurmJob], most: int) -> Iterator[SlurmJob]:
    """Each job of its own: of an array's waiting tasks the first `most`, no more than may run at once beside those
    that do."""
    jobs = list(jobs)
    running: dict[str, int] = {}
    for job in jobs:
        released = job.waits and not job.held and not job.array_tasks  # it starts at any moment
        if job.array_id and (job.runs or released):
            running[job.array_id] = running.get(job.array_id, 0) + 1
    for job in jobs:
        if not job.array_tasks:
            yield job
            continue
        room = most if job.array_limit is None else job.array_limit - running.get(job.array_id, 0)
        for task in job.array_tasks[: max(0, min(most, room))]:
            yield replace(job, id=f"{job.id}{task}", array_tasks=())
