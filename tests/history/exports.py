"""Texts as sacct prints them, made from a few values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

HEADER = (
    "JobIDRaw|JobName|User|Account|Partition|QOS|State|Submit|Eligible|Start|End|TimelimitRaw|NNodes|NCPUS|"
    "AllocTRES|ReqTRES|NodeList|Reason|Comment"
)
ROW: Mapping[str, object] = {
    "JobIDRaw": 1,
    "JobName": "train",
    "User": "ann",
    "Account": "ai",
    "Partition": "a100",
    "QOS": "normal",
    "State": "COMPLETED",
    "Submit": "2026-01-01T00:00:00",
    "Eligible": "2026-01-01T00:00:00",
    "Start": "2026-01-01T00:10:00",
    "End": "2026-01-01T01:10:00",
    "TimelimitRaw": 120,
    "NNodes": 1,
    "NCPUS": 8,
    "AllocTRES": "cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=16G,node=1",
    "ReqTRES": "cpu=8,gres/gpu=2,mem=16G,node=1",
    "NodeList": "gpu01",
    "Reason": "None",
    "Comment": "pytorch",
}


def line(**values: object) -> str:
    """A row; what is not given is that of ROW."""
    row = {**ROW, **values}
    return "|".join(str(row[name]) for name in HEADER.split("|"))


def write(path: Path, lines: Iterable[str], header: str = HEADER) -> Path:
    """A file of these rows under a header."""
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path
