"""A workload on a cluster, as an experiment is told of it: `TRACE[,cluster=…][,part=…][,compress=…]`."""

from __future__ import annotations

import random
from dataclasses import dataclass

from berth.errors import SettingError
from berth.model import Job, Node
from berth.traces import read, read_nodes, read_trace


@dataclass(frozen=True, slots=True)
class Case:
    """A workload and a cluster."""

    trace: str
    cluster: str | None = None
    """A node list or spec; None: the cluster that the trace brings."""
    part: float = 1.0
    """A share of the cluster's nodes, drawn by the seed."""
    compress: float = 1.0
    """The gaps between arrivals are divided by this."""

    @property
    def name(self) -> str:
        """As one would write it on the command line, files without their folders."""
        parts = [self.trace.rsplit("/", 1)[-1]]
        if self.cluster is not None:
            parts.append(f"cluster={self.cluster.rsplit('/', 1)[-1]}")
        parts += [
            f"{key}={value:g}"
            for key, value in (("part", self.part), ("compress", self.compress))
            if value != 1
        ]
        return ",".join(parts)

    def load(self, seed: int) -> tuple[tuple[Node, ...], list[Job]]:
        """Its nodes and jobs with this seed."""
        trace = read_trace(self.trace).with_seed(seed)
        nodes = trace.nodes if self.cluster is None else read_nodes(self.cluster)
        if not nodes:
            raise SettingError(
                f"the trace '{self.trace}' brings no cluster; say which: {self.trace},cluster=10x8:V100"
            )
        if self.part < 1:
            count = max(1, round(self.part * len(nodes)))
            nodes = tuple(nodes[at] for at in sorted(random.Random(seed).sample(range(len(nodes)), count)))
        jobs = list(read(trace, nodes=(), compress=self.compress))
        if not jobs:
            raise SettingError(f"the trace '{self.trace}' has no jobs; expected at least 1")
        return nodes, jobs


def case_of(text: str) -> Case:
    """A case from `TRACE[,cluster=FILE|SPEC][,part=FRACTION][,compress=FACTOR]`."""
    trace, *options = text.split(",")
    values: dict[str, str] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key == "cluster" or key in ("part", "compress"):
            values[key] = value
        elif "cluster" in values:
            values["cluster"] += f",{option}"  # a spec of several groups
        else:
            raise SettingError(f"'{option}' in '{text}'; expected cluster=…, part=… or compress=…")
    try:
        part, compress = float(values.get("part", 1)), float(values.get("compress", 1))
    except ValueError as error:
        raise SettingError(f"'{text}': part and compress are numbers") from error
    if not 0 < part <= 1 or not compress > 0:
        raise SettingError(
            f"'{text}': part is above 0 and up to 1, compress above 0; not {part:g} and {compress:g}"
        )
    return Case(trace, values.get("cluster"), part, compress)
