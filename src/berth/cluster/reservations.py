"""Advance reservations: nodes that are kept for some users' jobs at some time, from a file.

A file is CSV with the columns `users` (split by `|`), `start_s` and `end_s` (seconds from the trace's origin), and
`nodes` (names, split by `|`) or `gpus` (how many, on whole nodes that are chosen when the file is read). With
`drain_s` only jobs of these users start there from that long before `start_s`; what others run at `start_s` is evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from berth.cluster.outages import CsvRow, csv_rows, few_names
from berth.errors import SettingError, TraceError
from berth.model import Node, Reservation


def check_reservations(reservations: Sequence[Reservation], nodes: Sequence[Node]) -> None:
    """Refuse reservations beyond the cluster, without users, or of one node for two at once. Raises SettingError."""
    for number, one in enumerate(reservations):
        name = f"reservation {number + 1}, for {', '.join(one.users) or 'no user'}"
        if not one.users or not one.nodes:
            raise SettingError(f"{name}, has {len(one.nodes)} nodes; expected at least one user and one node")
        beyond = [node for node in one.nodes if not 0 <= node < len(nodes)]
        if beyond:
            raise SettingError(f"{name}, names node {beyond[0]}; the cluster has nodes 0…{len(nodes) - 1}")
        if not 0 <= one.start_ms < one.end_ms:
            raise SettingError(
                f"{name}, is from {one.start_ms} to {one.end_ms} ms; expected a start of 0 or more, and a later end"
            )
        if not 0 <= one.drain_ms <= one.start_ms:
            raise SettingError(
                f"{name}, drains its nodes {one.drain_ms} ms before {one.start_ms} ms; expected 0 or more, and not"
                " before time 0"
            )
        for other_number, other in enumerate(reservations[:number]):
            if _meet(one, other) and (both := set(one.nodes).intersection(other.nodes)):
                raise SettingError(
                    f"{name}, has node '{nodes[min(both)].name}' at the same time as reservation {other_number + 1};"
                    " name all users in one"
                )


def read_reservations(path: str | Path, nodes: Sequence[Node]) -> tuple[Reservation, ...]:
    """The reservations of a file; TraceError says what is wrong with it and where."""
    numbers = {node.name: number for number, node in enumerate(nodes)}
    found: list[Reservation] = []
    expected = "the columns users, start_s, end_s, and nodes or gpus"
    for row in csv_rows(path, expected, "users", "start_s", "end_s"):
        if row.keys().isdisjoint(("nodes", "gpus")):
            raise TraceError(row.path, expected, line=1, value=", ".join(row))
        users = _names(row["users"])
        if not users:
            raise row.error("users", "at least one user")
        start_ms, end_ms = row.ms("start_s"), row.ms("end_s")
        if end_ms <= start_ms:
            raise row.error("end_s", f"a time after start_s, {row['start_s']}")
        drain_ms = row.ms("drain_s") if row.get("drain_s") else 0
        if drain_ms > start_ms:
            raise row.error("drain_s", f"at most start_s, {row['start_s']}")
        wish = Reservation((), users, start_ms, end_ms, drain_ms)
        taken = {node for other in found if _meet(wish, other) for node in other.nodes}
        named = _names(row.get("nodes") or "")
        if named and row.get("gpus"):
            raise row.error("gpus", "nodes or gpus, not both")
        for node in named:
            if node not in numbers:
                raise row.error("nodes", f"nodes of the cluster: {few_names(nodes)}")
            if numbers[node] in taken:
                raise row.error("nodes", "a node that no row above has at that time")
        chosen = tuple(numbers[node] for node in named) or _chosen(row, nodes, taken)
        found.append(wish._replace(nodes=chosen))
    return tuple(found)


def _chosen(row: CsvRow, nodes: Sequence[Node], taken: set[int]) -> tuple[int, ...]:
    """Whole nodes with at least `value` GPUs together: the largest first, and the smallest that has what remains."""
    free = [number for number, node in enumerate(nodes) if node.gpus and number not in taken]
    there = sum(nodes[number].gpus for number in free)
    value = row.setdefault("gpus", "")
    missing = int(value) if value.isdecimal() else 0
    if not 1 <= missing <= there:
        raise row.error("gpus", f"from 1 to {there} GPUs, as no more are free of reservations then")
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
