"""Measured co-location: applications alone, and pairs of them that share a GPU with each one's speed.

The columns are those that Lucid published (Hu et al., *Lucid: A Non-intrusive, Scalable and Interpretable Scheduler
for Deep Learning Training Jobs*, ASPLOS 2023): alone `model, dataset, batchsize, amp, gpu_util, gmem_util` (per
cent) and `gmem` (MiB); pairs `model1, dataset1, batchsize1, amp1, speed1` and the same with 2, speeds as fractions
of the speed alone. Other columns are ignored.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.errors import ProfileError

KEY = ("model", "dataset", "batchsize", "amp")
ALONE = ("gpu_util", "gmem_util", "gmem")


@dataclass(frozen=True, eq=False)
class Measurements:
    """A applications alone, and P pairs of them."""

    applications: tuple[str, ...]
    models: tuple[str, ...]
    """Of each application, what several settings (data set, batch size) have in common."""
    usage: NDArray[np.int32]
    """(A, 4): gpu_milli, mem_mib, cores_milli, pcie_milli. Lucid measured how busy the card's memory was and not its
    cores: that stands for how hard an application works the card, and PCIe is 0."""
    pairs: NDArray[np.int64]
    """(P, 2): which two applications."""
    speeds: NDArray[np.float64]
    """(P, 2): of each, as a fraction of its speed alone as it was measured."""

    def __len__(self) -> int:
        return len(self.pairs)

    def of(self, chosen: Sequence[int] | NDArray[np.int64]) -> Measurements:
        """The same applications with these pairs alone."""
        rows = np.asarray(chosen, dtype=np.int64)
        return Measurements(self.applications, self.models, self.usage, self.pairs[rows], self.speeds[rows])


def read_measurements(alone: Path, pairs: Path) -> Measurements:
    """Read both files. Raises ProfileError naming file, line and column for what is missing or makes no sense."""
    index: dict[str, int] = {}
    models: list[str] = []
    usage: list[tuple[int, int, int, int]] = []
    for line, row in _rows(alone, (*KEY, *ALONE)):
        name = _name(row)
        if name in index:
            raise ProfileError(
                f"{alone}, line {line}: application '{name}' stands there twice; expected once"
            )
        gpu = _number(alone, line, row, "gpu_util", 100)
        cores = _number(alone, line, row, "gmem_util", 100)
        mem_mib = _number(alone, line, row, "gmem", 2**20)
        index[name] = len(index)
        models.append(row["model"])
        usage.append((round(gpu * 10), round(mem_mib), round(cores * 10), 0))
    if usage and 0 < max(row[0] for row in usage) <= 10:
        raise ProfileError(
            f"{alone}, column 'gpu_util': no value is above 1; expected per cent, 80 for a GPU that is busy 80 % of"
            " the time, not 0.8"
        )
    found: list[tuple[int, int]] = []
    speeds: list[tuple[float, float]] = []
    for line, row in _rows(pairs, tuple(f"{column}{side}" for side in (1, 2) for column in (*KEY, "speed"))):
        names = [_name(row, side) for side in ("1", "2")]
        for name in names:
            if name not in index:
                raise ProfileError(
                    f"{pairs}, line {line}: application '{name}' is not in {alone}; measure it alone"
                )
        found.append((index[names[0]], index[names[1]]))
        speeds.append((_number(pairs, line, row, "speed1", 10), _number(pairs, line, row, "speed2", 10)))
    if not found:
        raise ProfileError(f"{pairs} has no pairs; expected a line for each")
    return Measurements(
        tuple(index),
        tuple(models),
        np.array(usage, dtype=np.int32).reshape(len(usage), 4),
        np.array(found, dtype=np.int64),
        np.array(speeds, dtype=np.float64),
    )


def _name(row: dict[str, str], side: str = "") -> str:
    """That of an application; without settings, as in what berth measured, its model alone."""
    return "/".join(row[f"{column}{side}"] for column in KEY).rstrip("/")


def _rows(path: Path, wanted: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in wanted if column not in (reader.fieldnames or ())]
            if missing:
                raise ProfileError(
                    f"{path} has no column '{missing[0]}'; it has {', '.join(reader.fieldnames or ()) or 'none'}"
                )
            rows = []
            for row in reader:
                if any(row[column] is None for column in wanted):
                    raise ProfileError(
                        f"{path}, line {reader.line_num}: the line ends early; expected all columns"
                    )
                rows.append((reader.line_num, row))
            return rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise ProfileError(f"{path} is not a CSV file: {error}") from error


def _number(path: Path, line: int, row: dict[str, str], column: str, most: float) -> float:
    try:
        number = float(row[column])
    except ValueError:
        number = math.nan
    if not 0 <= number <= most:
        raise ProfileError(
            f"{path}, line {line}, column '{column}': {row[column]!r}; expected a number from 0 to {most:g}"
        )
    return number
