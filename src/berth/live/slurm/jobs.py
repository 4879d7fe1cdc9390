"""The jobs that Slurm has, as `squeue -O` prints them in one cheap query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from berth.errors import LiveError
from berth.history.values.durations import slurm_s
from berth.history.values.tres import Resources, indices, resources

FIELD = "\x1f"
"""What ends a field, with a mark of the query behind it: names and comments are their users' and may hold anything."""
ROW = "\x1e"
"""What ends a row: a comment may hold line breaks."""

COLUMNS = (
    "JobID", "JobArrayID", "HetJobID", "State", "Reason", "UserName", "Account", "QOS", "Partition", "Name",
    "Comment", "admin_comment", "Command", "PriorityLong", "Nice", "SubmitTime", "EligibleTime", "StartTime",
    "EndTime", "TimeLimit", "NumNodes", "NumTasks", "NodeList", "ReqNodes", "tres-alloc", "tres-per-node",
    "tres-per-job", "tres-per-task", "tres-per-socket", "Feature", "Dependency", "Reservation",
    "OverSubscribe", "RestartCnt",
)  # fmt: skip
"""What is asked of `squeue -O`, in this order."""
WHOLE_NODES = {"Exclusive": ("NODE", "TOPO"), "OverSubscribe": ("NO",)}
"""The column in which `--exclusive` shows, the newest first, and how. Slurm 26.05 took it out of OverSubscribe, which
is NO for any job since."""
_NOTHING = frozenset({"", "(null)", "N/A", "None", "NONE", "Unknown"})
MOST_TASKS = 1_000_000
"""A row with more tasks than this is taken to be broken; Slurm's own limit is 4,000,001."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job, a task of an array, or all tasks of an array that wait and are still one row."""

    id: str
    """What people and `scontrol` call it: `12`, `12_3`, `7+1`."""
    raw_id: str
    """Its number in the accounting (`JobIDRaw`)."""
    state: str
    reason: str
    user: str
    account: str
    qos: str
    partition: str
    name: str
    comment: str
    admin_comment: str
    command: str
    priority: int
    nice: int
    submit_ms: int
    eligible_ms: int | None
    start_ms: int | None
    """When it began, or when Slurm expects it to begin."""
    end_ms: int | None
    """When it ended, or must have ended."""
    time_limit_ms: int | None
    nodes: int
    tasks: int
    node_list: str
    req_nodes: str
    tres: Resources
    """What it has, or of a waiting job what it asks for besides GPUs."""
    tres_per_node: str
    tres_per_job: str
    tres_per_task: str
    tres_per_socket: str
    features: str
    dependency: str
    reservation: str
    exclusive: bool
    restarts: int
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
    for fields in rows_of(text, COLUMNS, mark):
        try:
            yield _job(fields, WHOLE_NODES[exclusive])
        except ValueError as error:
            why = f"squeue printed of job {fields[1]} what cannot be read: {error}"
            if unreadable is None:
                raise LiveError(why) from error
            unreadable(why)


def _job(fields: Sequence[str], whole: Sequence[str]) -> SlurmJob:
    of = dict(zip(COLUMNS, fields, strict=True))
    array_id, nodes, het_id = of["JobArrayID"], of["NumNodes"], of["HetJobID"]
    head, bracket, rest = array_id.partition("_[")
    spans, _, at_once = rest.rstrip("]").partition("%")
    waiting = indices(spans) if bracket else ()
    limit_s = slurm_s(of["TimeLimit"])
    if len(waiting) > MOST_TASKS:
        raise ValueError(f"an array of {len(waiting):,} tasks")
    return SlurmJob(
        id=f"{head}_" if bracket else array_id,
        raw_id=of["JobID"],
        state=of["State"],
        reason=of["Reason"],
        user=of["UserName"],
        account=text_of(of["Account"]),
        qos=text_of(of["QOS"]),
        partition=of["Partition"],
        name=of["Name"],
        comment=text_of(of["Comment"]),
        admin_comment=text_of(of["admin_comment"]),
        command=text_of(of["Command"]),
        priority=_number(of["PriorityLong"]),
        nice=int(of["Nice"] or 0),
        submit_ms=_ms(of["SubmitTime"]) or 0,
        eligible_ms=_ms(of["EligibleTime"]),
        start_ms=_ms(of["StartTime"]),
        end_ms=_ms(of["EndTime"]),
        time_limit_ms=None if limit_s is None else 1000 * limit_s,
        nodes=_number(nodes),
        tasks=_number(of["NumTasks"]),
        node_list=text_of(of["NodeList"]),
        req_nodes=text_of(of["ReqNodes"]),
        tres=resources(of["tres-alloc"]),
        tres_per_node=text_of(of["tres-per-node"]),
        tres_per_job=text_of(of["tres-per-job"]),
        tres_per_task=text_of(of["tres-per-task"]),
        tres_per_socket=text_of(of["tres-per-socket"]),
        features=text_of(of["Feature"]),
        dependency=text_of(of["Dependency"]),
        reservation=text_of(of["Reservation"]),
        exclusive=of["OverSubscribe"] in whole,
        restarts=_number(of["RestartCnt"]),
        array_tasks=waiting,
        array_limit=int(at_once) if at_once else None,
        het=het_id not in _NOTHING and het_id != "0",
        nodes_vary=len(set(nodes.split("-"))) > 1,
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
