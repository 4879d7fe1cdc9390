"""What a job of Slurm asks for, as berth's `Job`; and what berth writes into AdminComment.

The Lua plugin takes the GPUs off a job and notes them there, without spaces, which `scontrol` does not take:

    berth:1;node=gres:gpu:1;job=;task=;share=500:8192:1

`share` is added by berth when it places the job: per mille, MiB on each GPU, and 1 where compute is best effort. A
job that ran out of GPU memory also has how often (`retries`) and what the next attempt needs (`needs`, MiB); one that
Slurm did not start has how often in a row (`failures`), until when it is left alone (`until`, ms since 1970) and why;
one that no node can hold has why, so that its user sees it in `scontrol show job`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote_plus, unquote_plus

from berth.errors import SettingError
from berth.gpu_models import GPU_MODELS
from berth.history.values.applications import Rules
from berth.history.values.causes import BEGIN_OF_NOTE, note_in
from berth.history.values.tres import gres_list
from berth.live.card_models import card_model
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.nodes import SlurmNode
from berth.model import GpuModel, Job, Share
from berth.partition.sizes import mem_mib

_FEATURES = re.compile(r"[\w.:/-]+(?:&[\w.:/-]+)*")
_GPU_MEM = re.compile(r"(?:^|[\s,;])gpu_mem=(\S+?)(?=$|[\s,;])")
_GPU_PCT = re.compile(r"(?:^|[\s,;])gpu_pct=(\d+)(?=$|[\s,;])")
_INTERACTIVE = re.compile(r"(?:^|[\s,;])gpu_interactive=yes(?=$|[\s,;])")


class LeftToSlurmError(Exception):
    """A job that berth does not decide on, and why; its GPUs are given back to it, and Slurm decides."""


@dataclass(frozen=True, slots=True)
class Note:
    """What berth notes of a job in its AdminComment."""

    per_node: str = ""
    per_job: str = ""
    per_task: str = ""
    share: Share | None = None
    """What a partition enforces, once the job was placed."""
    best_effort: bool = False
    retries: int = 0
    """How often it has run out of memory."""
    needs_mib: int = 0
    """What it needs since then of each GPU."""
    failures: int = 0
    """How often in a row Slurm did not start it."""
    until_ms: int = 0
    """Until when it is left alone because of that."""
    why: str = ""
    part: str = ""
    """Which component of a heterogeneous job has it: Slurm changes all of them with the first."""

    def __str__(self) -> str:
        text = f"{BEGIN_OF_NOTE}node={self.per_node};job={self.per_job};task={self.per_task}"
        if self.share is not None:
            text += f";share={self.share.milli}:{self.share.mem_mib}:{int(self.best_effort)}"
        rest = (
            ("part", self.part),
            ("retries", self.retries),
            ("needs", self.needs_mib),
            ("failures", self.failures),
            ("until", self.until_ms if self.failures else 0),
            ("why", quote_plus(self.why, safe=":,/")),
        )
        return text + "".join(f";{name}={value}" for name, value in rest if value)


@lru_cache(maxsize=10_000)
def note_of(admin_comment: str) -> Note | None:
    """The note in a comment, in which others may have written too; None if it has none of ours."""
    text = note_in(admin_comment)
    if not text:
        return None
    pairs = dict(each.partition("=")[::2] for each in text.removeprefix(BEGIN_OF_NOTE).split(";"))
    get = pairs.get
    share = get("share", "").split(":") if "share" in pairs else []
    try:
        retries, needs_mib, failures, until_ms = (
            int(get(name, "0")) for name in ("retries", "needs", "failures", "until")
        )
        return Note(
            get("node", ""),
            get("job", ""),
            get("task", ""),
            Share(int(share[0]), int(share[1])) if share else None,
            bool(share and int(share[2])),
            retries,
            needs_mib,
            failures,
            until_ms,
            unquote_plus(get("why", "")),
            get("part", ""),
        )
    except (ValueError, IndexError):
        return None  # it was written by something else


class Cards:
    """The GPU models of a cluster's nodes: how much memory a card of each type has, and how many shards."""

    def __init__(self, mem_mib: Mapping[str, int] | None = None) -> None:
        """`mem_mib` is declared for types of GPUs; of others the catalogue knows it, or it is unknown."""
        self._declared = dict(mem_mib or {})
        self._models: dict[str, GpuModel] = {}
        self.shards_a_gpu = 0
        """The least that a node with shards has of them for a GPU."""
        self.least_mib = 0
        """Memory of the smallest GPU of which it is known; 0: of none."""

    def update(self, nodes: Iterable[SlurmNode]) -> None:
        """Take in which GPUs and shards there are."""
        nodes = tuple(nodes)
        self.shards_a_gpu = min((node.shards_a_gpu for node in nodes if node.shards_a_gpu), default=0)
        sizes = [
            size for kind in {node.model for node in nodes if node.gpus} if (size := self.model(kind).mem_mib)
        ]
        self.least_mib = min(sizes, default=0)

    def declare(self, mem_mib: Mapping[str, int]) -> None:
        """Take in the memory of types of GPUs, as of now."""
        self._declared |= mem_mib
        self._models.clear()

    def is_declared(self, kind: str) -> bool:
        """Whether the memory of this type was given."""
        return kind in self._declared

    def model(self, kind: str) -> GpuModel:
        """The model that is of this type without its number."""
        found = self._models.get(kind)
        if found is None:
            mem_mib = self._declared.get(kind) or _largest_mib(kind)
            found = self._models[kind] = card_model(kind or "GPU", mem_mib)
        return found


def _largest_mib(kind: str) -> int:
    """The memory of the largest card of the catalogue that a type may mean; 0: it means none."""
    begins = kind.upper().replace("_", "-")
    names = (name for name in GPU_MODELS if begins and name.startswith(begins))
    return max((GPU_MODELS[name].mem_mib for name in names), default=0)


class _Asked(NamedTuple):
    """GPUs, of any node or a type, and shards on each node."""

    gpus: int
    kind: str
    shards: int


def job_of(job: SlurmJob, cards: Cards, rules: Rules, *, priority: int, retries: int) -> Job:
    """The job as the scheduler knows it; LeftToSlurmError says why berth does not decide on it."""
    note = _note(job)
    for wrong, why in (
        (job.exclusive, "it asks for whole nodes (--exclusive)"),
        (bool(job.reservation), f"it asks for the reservation {job.reservation}"),
        ("," in job.partition, f"it was submitted to several partitions, {job.partition}"),
        (bool(job.features) and not _FEATURES.fullmatch(job.features), f"its features are {job.features}"),
        (bool(job.tres_per_socket), "it asks for GPUs on each socket"),
        (job.nodes_vary, "it asks for a range of nodes"),
    ):
        if wrong:
            raise LeftToSlurmError(f"{why}, which berth leaves to Slurm")
    asked = _asked(job, note)
    share = _share(job, asked, cards)
    features = tuple(f"feature:{each}" for each in job.features.split("&")) if job.features else ()
    named = (f"node:{job.req_nodes}",) if job.req_nodes and note_of(job.admin_comment) is None else ()
    return Job(
        id=job.id,
        submit_ms=job.submit_ms,
        work_ms=None,
        user=job.user,
        application=rules.application(job.comment, job.name, job.command) or job.name,
        gpus=asked.gpus,
        share=share,
        nodes=max(1, job.nodes),
        cpu_milli=1000 * job.tres.cpus,
        mem_mib=job.tres.mem_mib,
        models=(cards.model(asked.kind).name,) if asked.kind else (),
        labels=(f"partition:{job.partition}", *features, *named),
        priority=priority,
        time_limit_ms=job.time_limit_ms,
        retries=retries,
        virtual_cluster=job.partition,
        apart=job.het,  # Slurm starts no heterogeneous job whose components can only have the same node
    )


def part_of(job: SlurmJob, cards: Cards) -> tuple[int, Share]:
    """How many GPUs a job asks for, and which part of each; LeftToSlurmError if berth cannot know."""
    note = _note(job)
    asked = _asked(job, note)
    share = _share(job, asked, cards)
    return asked.gpus, Share(share.milli, max(share.mem_mib, note.needs_mib))


def _note(job: SlurmJob) -> Note:
    """What it asks for: while berth holds it, that stands in berth's note alone."""
    return note_of(job.admin_comment) or Note(job.tres_per_node, job.tres_per_job, job.tres_per_task)


def _asked(job: SlurmJob, note: Note) -> _Asked:
    nodes = max(1, job.nodes)
    gpus = shards = 0
    kinds: set[str] = set()
    try:
        for text, times in ((note.per_node, nodes), (note.per_job, 1), (note.per_task, max(1, job.tasks))):
            for each in gres_list(text):
                if each.name == "gpu":
                    gpus += each.count * times
                    kinds |= {each.kind} - {""}
                elif each.name == "shard":
                    shards += each.count
                    kinds |= {each.kind} - {""}
                else:
                    raise LeftToSlurmError(f"it asks for {each.name}, which berth leaves to Slurm")
    except ValueError as error:
        raise LeftToSlurmError(f"its request cannot be read: {error}") from error
    if (gpus and shards) or len(kinds) > 1:
        raise LeftToSlurmError("it asks for GPUs of several kinds, which berth leaves to Slurm")
    if gpus % nodes:
        raise LeftToSlurmError(
            f"its {gpus} GPUs do not divide into {nodes} nodes, which berth leaves to Slurm"
        )
    return _Asked(gpus or (nodes if shards else 0), kinds.pop() if kinds else "", shards)


def _share(job: SlurmJob, asked: _Asked, cards: Cards) -> Share:
    """What it may use of each GPU: by its shards, or by `gpu_mem=4G gpu_pct=30` in its comment.

    Of one that names its memory alone the memory decides how many share a GPU; its compute is best effort.
    """
    card_mib = cards.model(asked.kind).mem_mib if asked.kind else cards.least_mib
    if asked.shards:
        if not cards.shards_a_gpu or asked.shards > cards.shards_a_gpu:
            raise LeftToSlurmError(f"it asks for {asked.shards} shards, and a GPU has {cards.shards_a_gpu}")
        return Share(1000 * asked.shards // cards.shards_a_gpu, card_mib * asked.shards // cards.shards_a_gpu)
    pct, (mem, _) = _GPU_PCT.search(job.comment), memory_of(job.comment)
    milli = min(1000, 10 * int(pct[1])) if pct and int(pct[1]) else 1000
    if milli < 1000 and not mem:  # the Prolog promises it that part of the memory too
        mem = card_mib * milli // 1000
    if mem and pct is None and asked.gpus == 1 and 0 < mem < card_mib:
        milli = max(1, 1000 * mem // card_mib)
    return Share(milli, mem)


def memory_of(comment: str) -> tuple[int, int]:
    """The GPU memory that a comment asks for, and how far that may grow, in MiB: `gpu_mem=4G` or `gpu_mem=4G..20G`; 0:
    it does not say."""
    wanted = _GPU_MEM.search(comment)
    least, dots, most = (wanted[1] if wanted else "").partition("..")
    try:
        return (mem_mib(least) if least else 0), (mem_mib(most) if dots else 0)
    except SettingError:
        return 0, 0


def is_interactive(comment: str) -> bool:
    """Whether a comment lets its job leave its GPUs while it idles: `gpu_interactive=yes`."""
    return _INTERACTIVE.search(comment) is not None


def asks_for_compute(job: SlurmJob) -> bool:
    """Whether a job asks for a part of a GPU's compute, which is promised then; else it takes what others leave."""
    return bool(_GPU_PCT.search(job.comment)) or "shard" in str(_note(job))
