"""Advance reservations: nodes that are kept for some users' jobs at some time, from a file.

A file is CSV with the columns `users` (split by `|`), `start_s` and `end_s` (seconds from the trace's origin), and
`nodes` (names, split by `|`) or `gpus` (how many, on whole nodes that are chosen when the file is read). With
`drain_s` only jobs of these users start there from that long before `start_s`; what others run at `start_s` is evicted.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from berth.cluster.outages import milliseconds_of
from berth.errors import SettingError, TraceError
from berth.model import Node, Reservation


def check_reservations(reservations: Sequence[Reservation], nodes: Sequence[Node]) -> None:
    """Refuse reservations beyond the cluster, without users, or of one node for two at once. Raises SettingError."""
    for number, one in enumerate(reservations):
        said = f"reservation {number + 1}, for {', '.join(one.users) or 'no user'}"
        if not one.users or not one.nodes:
            raise SettingError(f"{said}, has {len(one.nodes)} nodes; expected at least one user and one node")
        beyond = [node for node in one.nodes if not 0 <= node < len(nodes)]
        if beyond:
            raise SettingError(f"{said}, names node {beyond[0]}; the cluster has nodes 0…{len(nodes) - 1}")
        if not 0 <= one.start_ms < one.end_ms:
            raise SettingError(
                f"{said}, is from {one.start_ms} to {one.end_ms} ms; expected a start of 0 or more, and a later end"
            )
        if not 0 <= one.drain_ms <= one.start_ms:
            raise SettingError(
                f"{said}, drains its nodes {one.drain_ms} ms before {one.start_ms} ms; expected 0 or more, and not"
                " before time 0"
            )
        for other_number, other in enumerate(reservations[:number]):
            if _meet(one, other) and (both := set(one.nodes).intersection(other.nodes)):
                raise SettingError(
                    f"{said}, has node '{nodes[min(both)].name}' at the same time as reservation {other_number + 1};"
                    " name all users in one"
                )


def read_reservations(path: str | Path, nodes: Sequence[Node]) -> tuple[Reservation, ...]:
    """The reservations of a file; TraceError says what is wrong with it and where."""
    name = str(path)
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise TraceError.unreadable(name, error) from error
    except UnicodeDecodeError as error:
        raise TraceError(name, f"a CSV file in UTF-8 ({error})") from error
    rows = csv.DictReader(lines, restval="")
    there = [column.strip() for column in rows.fieldnames or ()]
    rows.fieldnames = there
    missing = {"users", "start_s", "end_s"}.difference(there)
    if missing or not {"nodes", "gpus"}.intersection(there):
        raise TraceError(
            name, "the columns users, start_s, end_s, and nodes or gpus", line=1, value=", ".join(there)
        )
    numbers = {node.name: number for number, node in enumerate(nodes)}
    found: list[Reservation] = []
    for row in rows:
        line = rows.line_num
        users = _names(row["users"])
        if not users:
            raise TraceError(name, "at least one user", line=line, column="users", value=row["users"])
        start_ms, end_ms = (
            milliseconds_of(name, line, column, row[column]) for column in ("start_s", "end_s")
        )
        if end_ms <= start_ms:
            raise TraceError(
                name, f"a time after start_s, {row['start_s']}", line=line, column="end_s", value=row["end_s"]
            )
        drain_ms = milliseconds_of(name, line, "drain_s", row.get("drain_s") or "0")
        if drain_ms > start_ms:
            expected = f"at most start_s, {row['start_s']}"
            raise TraceError(name, expected, line=line, column="drain_s", value=row["drain_s"])
        wish = Reservation((), users, start_ms, end_ms, drain_ms)
        taken = {node for other in found if _meet(wish, other) for node in other.nodes}
        named = _names(row.get("nodes") or "")
        if named and row.get("gpus"):
            raise TraceError(name, "nodes or gpus, not both", line=line, column="gpus", value=row["gpus"])
        for node in named:
            if node not in numbers:
                few = ", ".join(list(numbers)[:5]) + (", …" if len(numbers) > 5 else "")
                raise TraceError(name, f"nodes of the cluster: {few}", line=line, column="nodes", value=node)
            if numbers[node] in taken:
                expected = "a node that no row above has at that time"
                raise TraceError(name, expected, line=line, column="nodes", value=node)
        chosen = tuple(numbers[node] for node in named)
        if not named:
            chosen = _chosen(name, line, row.get("gpus") or "", nodes, taken)
        found.append(wish._replace(nodes=chosen))
    return tuple(found)


def _chosen(path: str, line: int, value: str, nodes: Sequence[Node], taken: set[int]) -> tuple[int, ...]:
    """Whole nodes with at least `value` GPUs together: the largest first, and the smallest that has what remains."""
    free = [number for number, node in enumerate(nodes) if node.gpus and number not in taken]
    there = sum(nodes[number].gpus for number in free)
    missing = int(value) if value.isdecimal() else 0
    if not 1 <= missing <= there:
        expected = f"from 1 to {there} GPUs, as no more are free of reservations then"
        raise TraceError(path, expected, line=line, column="gpus", value=value)
    chosen: list[int] = []
    while missing > 0:
        best = min(free, key=lambda at: (nodes[at].gpus < missing, abs(nodes[at].gpus - missing)))
        free.remove(best)
        chosen.append(best)
        missing -= nodes[best].gpus
    return tuple(sorted(chosen))


def _meet(one: Reservation, other: Reservation) -> bool:
    """Whether both keep nodes at some time."""
    return one.start_ms - one.drain_ms < other.end_ms and other.start_ms - other.drain_ms < one.end_ms


def _names(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in value.split("|") if name.strip()))
