"""The nodes and partitions that Slurm has, as `scontrol -o show` prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from berth.errors import LiveError
from berth.history.values.hostlist import expand
from berth.history.values.tres import Gres, base_type, gres_list

_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")
_COMMENT = re.compile(r".*\sComment=(.*?)\s*(?:\s(?:Extra|InstanceId|InstanceType)=.*)?")
"""A node's comment, which may hold pairs of its own."""
_NONE = frozenset({"", "(null)", "N/A", "none"})
NODE_FIELDS = {
    "GresUsed": "GPUs that others use are not seen",
    "ActiveFeatures": "jobs that ask for features find no node",
    "Partitions": "no node is in a partition",
}
"""What `scontrol show node` prints of a node with GPUs, and what is lost if not; no node is read without the others."""
PARTITION_FIELDS = {
    "State": "no partition is up",
    "Nodes": "the nodes of partitions are not known",
    "PriorityJobFactor": "held jobs of all partitions have the same priority",
    "PriorityTier": "jobs of no partition are more urgent than others",
}
"""The same for `scontrol show partition`."""
_NOT_FOR_JOBS = frozenset({
    "DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "NOT_RESPONDING", "POWERED_DOWN",
    "POWERING_DOWN", "POWER_DOWN", "REBOOT", "REBOOT_ISSUED", "RESERVED", "UNKNOWN", "FUTURE", "NO_RESPOND", "ERROR",
    "INVALID", "INVALID_REG",
})  # fmt: skip
"""States, or flags of them, of nodes on which berth starts nothing."""
_BROKEN = _NOT_FOR_JOBS - {
    "MAINT", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "REBOOT", "REBOOT_ISSUED", "RESERVED", "FUTURE",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node of Slurm with its GPUs."""

    name: str
    state: str
    """As Slurm writes it: `IDLE`, `MIXED+DRAIN`, `DOWN*`."""
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    cpus: int
    mem_mib: int
    gpu_kinds: tuple[str, ...]
    """The type of each of its GPUs, in the order of their indices."""
    shards: int
    """All of its GPUs together; 0: it has none."""
    used: tuple[Gres, ...]
    """Its GPUs and shards in use, with their indices."""
    without: tuple[str, ...] = ()
    """The types of GPUs for which it has no shards, though it has some for others: Slurm 22.05 may lose them at a kill
    of its daemons."""
    comment: str = ""
    reason: str = ""
    """Why it is down or drained, and who said so."""

    @property
    def gpus(self) -> int:
        return len(self.gpu_kinds)

    @property
    def typed(self) -> bool:
        """Whether each of its GPUs has a type of its own, so that an exact one can be asked for."""
        return len(set(self.gpu_kinds)) == self.gpus > 0 and "" not in self.gpu_kinds

    @property
    def model(self) -> str:
        """The type of its GPUs without their numbers; empty if it has none, or several."""
        kinds = {base_type(kind) for kind in self.gpu_kinds}
        return kinds.pop() if len(kinds) == 1 else ""

    @property
    def shards_a_gpu(self) -> int:
        return self.shards // max(1, self.gpus - len(self.without))

    @property
    def up(self) -> bool:
        """Whether jobs may start on it."""
        return not _NOT_FOR_JOBS & self._flags

    @property
    def broken(self) -> bool:
        """Whether it needs an operator before jobs start on it; one that saves power or is reserved does not."""
        return bool(_BROKEN & self._flags)

    @property
    def silent(self) -> bool:
        """Whether its slurmd does not answer, or never did."""
        return bool({"NOT_RESPONDING", "NO_RESPOND", "UNKNOWN"} & self._flags)

    @property
    def _flags(self) -> Set[str]:
        return set(self.state.replace("*", "+NOT_RESPONDING").split("+"))

    @property
    def lost(self) -> bool:
        """Whether what ran on it is gone."""
        return self.state.split("+")[0].rstrip("*") in ("DOWN", "UNKNOWN", "FUTURE")

    def index_of(self, kind: str) -> int | None:
        """The index of the GPU that alone has this type."""
        return self.gpu_kinds.index(kind) if self.gpu_kinds.count(kind) == 1 else None


@dataclass(frozen=True, slots=True)
class SlurmPartition:
    """A partition of Slurm."""

    name: str
    up: bool
    nodes: tuple[str, ...]
    priority_factor: int = 1
    tier: int = 1
    """Jobs of a higher one come first, and may take the place of others."""
    qos: tuple[str, ...] = ()
    """The QoS whose jobs it takes; empty: all."""


def pairs_of(line: str) -> dict[str, str]:
    """The `Key=value` pairs of one line; a value may hold spaces and equals signs of its own."""
    found = list(_PAIR.finditer(line))
    ends = [each.start() for each in found[1:]] + [len(line)]
    return {
        each[1]: line[each.end() : end].strip()
        for each, end in zip(reversed(found), reversed(ends), strict=True)
    }


def lacking(text: str, begin: str, fields: Mapping[str, str]) -> list[str]:
    """Which of these fields no line that begins so has, and what is lost; none where there is no such line."""
    lines = [pairs_of(line) for line in text.splitlines() if line.startswith(begin)]
    lines = [line for line in lines if line.get("Gres", "") not in _NONE or begin != "NodeName="]
    if not lines:
        return []
    return [f"{name}: {lost}" for name, lost in fields.items() if not any(name in line for line in lines)]


def nodes_of(text: str) -> Iterator[SlurmNode]:
    """What `scontrol -o -d show node` prints; LiveError for a line that cannot be read."""
    for line in text.splitlines():
        if not line.startswith("NodeName="):
            continue
        pairs = pairs_of(line)
        found = _COMMENT.fullmatch(line)
        pairs["Comment"] = found[1] if found and found[1] not in _NONE else ""
        try:
            yield _node(pairs)
        except (KeyError, ValueError) as error:
            raise LiveError(
                f"scontrol printed of node {pairs['NodeName']} what cannot be read: {error}"
            ) from error


def _node(pairs: dict[str, str]) -> SlurmNode:
    kinds: list[str] = []
    without: list[str] = []
    shards = 0
    for each in gres_list(pairs.get("Gres", ""), odd=True):
        if each.name == "gpu":
            kinds += [each.kind] * each.count
        elif each.name == "shard":
            shards += each.count
            without += [each.kind] * (each.count == 0)
    return SlurmNode(
        name=pairs["NodeName"],
        state=pairs["State"],
        features=_names(pairs.get("ActiveFeatures", "")),
        partitions=_names(pairs.get("Partitions", "")),
        cpus=int(pairs.get("CPUEfctv") or pairs["CPUTot"]),
        mem_mib=int(pairs["RealMemory"]),
        gpu_kinds=tuple(kinds),
        shards=shards,
        without=tuple(without) if shards else (),
        used=gres_list(pairs.get("GresUsed", ""), odd=True),
        comment=pairs.get("Comment", ""),
        reason="" if pairs.get("Reason", "") in _NONE else pairs["Reason"],
    )


def partitions_of(text: str) -> Iterator[SlurmPartition]:
    """What `scontrol -o show partition` prints."""
    for line in text.splitlines():
        if not line.startswith("PartitionName="):
            continue
        pairs = pairs_of(line)
        yield SlurmPartition(
            pairs["PartitionName"],
            pairs.get("State") == "UP",
            expand(pairs.get("Nodes", "")),
            int(pairs.get("PriorityJobFactor", "1")),
            int(pairs.get("PriorityTier", "1")),
            () if pairs.get("AllowQos", "ALL") == "ALL" else _names(pairs["AllowQos"]),
        )


def _names(text: str) -> tuple[str, ...]:
    return () if text in _NONE else tuple(text.split(","))
