"""Outages of nodes: from a file, or drawn at a rate, and what a job keeps of its work when it is stopped.

A file is CSV with the columns `node` (its name), `down_s` and `up_s` (seconds from the trace's origin; an empty
`up_s`: it does not come back). With `drain_s` it is maintenance: from `drain_s` before `down_s` nothing starts on the
node, and what still runs there then is evicted.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from pathlib import Path

from berth.errors import SettingError, SimulationError, TraceError
from berth.model import Node, Outage


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a job that keeps its work has left of it after an eviction or a lost node."""

    checkpoint_ms: int | None = None
    """It writes a checkpoint each time it has done this much work, and loses what came after the last one; None: it
    loses nothing."""
    restart_ms: int = 0
    """How long every attempt but the first runs before it works on, to load what it needs, however fast its cards are.
    Every job pays it."""
    most_lost: int = 100
    """A job is given up after this many attempts in a row that were lost with their nodes and kept nothing: one that
    runs for days where nodes fail within hours would run for ever."""
    write_ms: int = 0
    """How long a job stands still to write a checkpoint; it writes none when its work ends."""

    def __post_init__(self) -> None:
        if self.checkpoint_ms is not None and self.checkpoint_ms < 1:
            raise SettingError(f"a checkpoint every {self.checkpoint_ms} ms; expected 1 ms or more")
        if self.restart_ms < 0:
            raise SettingError(f"a restart takes {self.restart_ms} ms; expected 0 or more")
        if self.most_lost < 1:
            raise SettingError(
                f"a job is given up after {self.most_lost} attempts lost with their nodes; expected 1 or more"
            )
        if self.write_ms < 0:
            raise SettingError(f"a checkpoint takes {self.write_ms} ms to write; expected 0 or more")
        if self.write_ms and self.checkpoint_ms is None:
            raise SettingError(
                f"a checkpoint takes {self.write_ms} ms to write, but no job writes any; say how often they do"
            )

    def writing_ms(self, left_ms: int) -> int:
        """How long an attempt with this much work left stands still to write checkpoints."""
        if self.checkpoint_ms is None or left_ms <= 0:
            return 0
        return (left_ms - 1) // self.checkpoint_ms * self.write_ms

    def written_ms(self, ran_us: int, speed_milli: int) -> int:
        """The work in the checkpoints that an attempt has written after it ran this long, loading left out."""
        if self.checkpoint_ms is None or ran_us <= 0:
            return 0
        period_us = -(-self.checkpoint_ms * 1_000_000 // speed_milli) + self.write_ms * 1000
        return ran_us // period_us * self.checkpoint_ms

    def saved_ms(self, done_ms: int) -> int:
        """How much of the work done is kept."""
        return done_ms if self.checkpoint_ms is None else done_ms // self.checkpoint_ms * self.checkpoint_ms


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Nodes fail by themselves: times between failures and for repair are exponential, each node for itself."""

    mtbf_ms: int
    """Mean time a node is up before it fails."""
    mttr_ms: int
    """Mean time until it is back."""

    def __post_init__(self) -> None:
        if self.mtbf_ms < 1 or self.mttr_ms < 1:
            raise SettingError(
                f"mean times between failures and to repair are {self.mtbf_ms} and {self.mttr_ms} ms;"
                " expected 1 ms or more"
            )

    def outages(self, nodes: int, seed: int = 0) -> Iterator[Outage]:
        """The outages of a number of nodes in order of time, without end; other seeds give others."""
        draw = random.Random(seed)
        turns = [(self._up_ms(draw), node) for node in range(nodes)]
        heapify(turns)
        while True:
            down_ms, node = turns[0]
            up_ms = down_ms + 1 + int(draw.expovariate(1 / self.mttr_ms))
            heapreplace(turns, (up_ms + self._up_ms(draw), node))
            yield Outage(node, down_ms, up_ms)

    def _up_ms(self, draw: random.Random) -> int:
        return 1 + int(draw.expovariate(1 / self.mtbf_ms))


def check_outage(outage: Outage, nodes: int) -> None:
    """Refuse an outage of a node that a cluster of this size does not have, or at impossible times. Raises
    SimulationError."""
    if not 0 <= outage.node < nodes:
        raise SimulationError(f"an outage names node {outage.node}; the cluster has nodes 0…{nodes - 1}")
    if outage.down_ms < 0:
        raise SimulationError(
            f"an outage of node {outage.node} begins at {outage.down_ms} ms; expected 0 or more"
        )
    if outage.up_ms is not None and outage.up_ms <= outage.down_ms:
        raise SimulationError(
            f"an outage of node {outage.node} ends at {outage.up_ms} ms, before {outage.down_ms}"
        )
    if not 0 <= outage.drain_ms <= outage.down_ms:
        raise SimulationError(
            f"an outage of node {outage.node} at {outage.down_ms} ms is announced {outage.drain_ms} ms before;"
            " expected 0 or more, and not before time 0"
        )


def read_outages(path: str | Path, nodes: Sequence[Node]) -> tuple[Outage, ...]:
    """The outages of a file, in order of time; TraceError says what is wrong with it and where."""
    numbers = {node.name: number for number, node in enumerate(nodes)}
    found = []
    for row in csv_rows(path, "the columns node, down_s and up_s", "node", "down_s", "up_s"):
        if row["node"] not in numbers:
            raise row.error("node", f"a node of the cluster: {few_names(nodes)}")
        down_ms = row.ms("down_s")
        up_ms = row.ms("up_s") if row["up_s"] else None
        if up_ms is not None and up_ms <= down_ms:
            raise row.error("up_s", f"a time after down_s, {row['down_s']}")
        drain_ms = row.ms("drain_s") if row.get("drain_s") else 0
        if drain_ms > down_ms:
            raise row.error("drain_s", f"at most down_s, {row['down_s']}")
        found.append(Outage(numbers[row["node"]], down_ms, up_ms, drain_ms))
    return tuple(sorted(found, key=lambda outage: outage.down_ms))


class CsvRow(dict[str, str]):
    """A row of a CSV file by column."""

    path: str
    line: int

    def error(self, column: str, expected: str) -> TraceError:
        """That a column has not what is expected."""
        return TraceError(self.path, expected, line=self.line, column=column, value=self[column])

    def ms(self, column: str) -> int:
        """The seconds of a column, as milliseconds. Raises TraceError where they are none."""
        try:
            seconds = float(self[column])
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e15:
            raise self.error(column, "seconds, 0 or more")
        return round(seconds * 1000)


def csv_rows(path: str | Path, expected: str, *needed: str) -> Iterator[CsvRow]:
    """The rows of a CSV file; TraceError where it cannot be read or lacks a column."""
    name = str(path)
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise TraceError.unreadable(name, error) from error
    except UnicodeDecodeError as error:
        raise TraceError(name, f"a CSV file in UTF-8 ({error})") from error
    rows = csv.reader(lines)
    header = [column.strip() for column in next(rows, [])]
    for column in needed:
        if column not in header:
            raise TraceError(name, expected, line=1, column=column, value=", ".join(header))
    for values in rows:
        if 0 < len(values) < len(header):
            raise TraceError(name, f"{len(header)} columns", line=rows.line_num, value=",".join(values))
        if values:
            row = CsvRow(zip(header, values, strict=False))
            row.path, row.line = name, rows.line_num
            yield row


def few_names(nodes: Sequence[Node]) -> str:
    """The first nodes of a cluster by name."""
    return ", ".join([node.name for node in nodes[:5]] + ["…"] * (len(nodes) > 5))
