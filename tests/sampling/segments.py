"""Reads what a sampler has written, for tests."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from berth.sampling.spool import Segment, Slice, checked_lines, first_line_of


def read_segment(path: Path) -> tuple[Segment, list[Slice], int]:
    """A segment's first line, its slices, and how many lines are broken."""
    head = first_line_of(path)
    _, lines = checked_lines(path)
    names = {field.name for field in fields(Slice)}
    slices, broken = [], 0
    for _, end_ms, text in lines:
        content = json.loads(text) if end_ms >= 0 else {}
        if content.keys() == names:
            slices.append(Slice(**content))
        else:
            broken += 1
    return head, slices, broken
