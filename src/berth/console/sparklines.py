"""Small pictures of numbers over time, as paths of SVG in a box of one unit a step and 100 units of height."""

from __future__ import annotations

import numpy as np

from berth.arrays import FloatArray

HEIGHT = 100


def area(values: FloatArray, top: float) -> str:
    """The filled steps of (points,) values from 0 to `top`; steps without a number stay empty."""
    return _path(values, top, closed=True)


def line(values: FloatArray, top: float) -> str:
    """The upper edge of these steps."""
    return _path(values, top, closed=False)


def gaps(values: FloatArray) -> str:
    """The full height of each run of steps without a number."""
    return area(np.where(np.isnan(values), 1.0, np.nan), 1.0)


def _path(values: FloatArray, top: float, *, closed: bool) -> str:
    known = ~np.isnan(values)
    heights = np.clip(np.round(HEIGHT * np.where(known, values, 0) / max(top, 1e-9)), 0, HEIGHT).astype(int)
    words: list[str] = []
    at = 0
    while at < len(values):
        if not known[at]:
            at += 1
            continue
        words.append(f"M{at} {HEIGHT}" if closed else f"M{at} {HEIGHT - heights[at]}")
        drawn = None
        while at < len(values) and known[at]:
            if heights[at] != drawn:
                drawn = heights[at]
                words.append(f"V{HEIGHT - drawn}")
            following = at + 1
            while following < len(values) and known[following] and heights[following] == drawn:
                following += 1
            words.append(f"H{following}")
            at = following
        if closed:
            words.append(f"V{HEIGHT}Z")
    return "".join(words)
