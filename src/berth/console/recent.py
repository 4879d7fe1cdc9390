"""Use, memory and waits of the last hour and the last day, from samples that are kept over a restart.

A sample is taken every 30 seconds, whether or not a page is open. The last hour is kept sample by sample, the last day
as means of ten minutes. Where nothing was sampled there is no number.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from berth.arrays import FloatArray
from berth.live.driver.snapshot import Snapshot

_log = logging.getLogger(__name__)
MOST_USERS: Final = 200
"""Users in one sample: those who hold most, then those who wait."""
_UNREADABLE: Final = (zlib.error, ValueError, TypeError, LookupError)
"""What reading a damaged sample raises: there is a gap where it was."""


@dataclass(frozen=True, slots=True)
class Span:
    """How far the pictures look back, in equal steps."""

    name: str
    step_ms: int
    points: int


HOUR: Final = Span("hour", 30_000, 120)
DAY: Final = Span("day", 600_000, 144)
SPANS: Final = {span.name: span for span in (HOUR, DAY)}


@dataclass(frozen=True, slots=True)
class Sample:
    """A cluster at one moment, or its mean over some minutes."""

    gpus: Mapping[tuple[str, str, int], tuple[float | None, float | None, int, float]]
    """By source, node and index: use in per cent, GPU memory in use, its GPU memory, compute promised in milli."""
    users: Mapping[str, tuple[float, float, float]]
    """Compute held in milli, jobs that wait, the longest of these waits in seconds."""
    waiting: float

    def packed(self) -> bytes:
        """As bytes of the store."""
        columns = [[*key, *values] for key, values in self.gpus.items()]
        body = {"gpus": columns, "users": self.users, "waiting": self.waiting}
        return zlib.compress(json.dumps(body, separators=(",", ":")).encode(), 1)


def sample_of(snapshots: Mapping[str, Snapshot], now_ms: int) -> Sample:
    """What these sources show at this moment."""
    gpus: dict[tuple[str, str, int], tuple[float | None, float | None, int, float]] = {}
    users: dict[str, list[float]] = {}
    for name, look in snapshots.items():
        for gpu in look.gpus:
            milli = sum(each.milli for each in gpu.tenants)
            gpus[name, gpu.node, gpu.index] = (gpu.use_pct, gpu.used_mib, gpu.mem_mib, milli)
            for each in gpu.tenants:
                users.setdefault(each.user, [0, 0, 0])[0] += each.milli
        for job in look.jobs:
            if job.state in ("waiting", "held"):
                counts = users.setdefault(job.user, [0, 0, 0])
                counts[1] += 1
                counts[2] = max(counts[2], (now_ms - job.ready_ms) / 1000 if job.ready_ms is not None else 0)
    most = sorted(users.items(), key=lambda each: [-each[1][0], -each[1][1], each[0]])[:MOST_USERS]
    waiting = sum(look.waiting for look in snapshots.values())
    return Sample(gpus, {user: (counts[0], counts[1], counts[2]) for user, counts in most}, waiting)


def mean_of(samples: Sequence[Sample]) -> Sample:
    """One sample for many: means, and the longest of the longest waits."""
    of_gpu: dict[tuple[str, str, int], list[tuple[float | None, float | None, int, float]]] = {}
    of_user: dict[str, list[tuple[float, float, float]]] = {}
    for sample in samples:
        for key, values in sample.gpus.items():
            of_gpu.setdefault(key, []).append(values)
        for user, counts in sample.users.items():
            of_user.setdefault(user, []).append(counts)
    gpus = {
        key: (
            _mean([use for use, _, _, _ in found]),
            _mean([used for _, used, _, _ in found]),
            found[-1][2],
            sum(milli for _, _, _, milli in found) / len(found),
        )
        for key, found in of_gpu.items()
    }
    count = max(1, len(samples))
    users = {
        user: (
            sum(milli for milli, _, _ in found) / count,
            sum(waiting for _, waiting, _ in found) / count,
            max(wait_s for _, _, wait_s in found),
        )
        for user, found in of_user.items()
    }
    return Sample(gpus, users, sum(sample.waiting for sample in samples) / count)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None


@dataclass(slots=True)
class Window:
    """What was sampled in a span up to now; NaN where nothing was. (points,) but where it says otherwise."""

    span: Span
    from_ms: int
    """Where the first step begins."""
    sampled: np.ndarray[Any, np.dtype[np.bool_]]
    cards: FloatArray
    """GPUs that were seen."""
    held: FloatArray
    """GPUs with at least one job."""
    working: FloatArray
    """Use of all GPUs together, in GPUs; NaN where no use is measured."""
    mem_mib: FloatArray
    used_mib: FloatArray
    """GPU memory in use; NaN where it is not measured."""
    waiting: FloatArray
    wait_s: FloatArray
    """The longest wait of a job that waited then."""
    gpus: dict[tuple[str, str, int], FloatArray] = field(default_factory=dict)
    """By source, node and index: (3, points) use in per cent, memory in use in MiB, compute promised in milli."""
    gpu_mem_mib: dict[tuple[str, str, int], int] = field(default_factory=dict)
    users: dict[str, FloatArray] = field(default_factory=dict)
    """(3, points) GPUs held, jobs that wait, the longest of these waits in seconds."""

    @property
    def to_ms(self) -> int:
        """Where the last step ends."""
        return self.from_ms + self.span.points * self.span.step_ms


def window_of(span: Span, samples: Mapping[int, Sample], now_ms: int) -> Window:
    """The steps up to now; `samples` by the time at which their step begins."""
    points = span.points
    from_ms = (now_ms // span.step_ms - points + 1) * span.step_ms
    of_all = np.full((7, points), np.nan)
    found = Window(span, from_ms, np.zeros(points, np.bool_), *of_all)
    for at_ms, sample in samples.items():
        at = (at_ms - from_ms) // span.step_ms
        if not 0 <= at < points:
            continue
        found.sampled[at] = True
        uses = [use for use, _, _, _ in sample.gpus.values() if use is not None]
        useds = [used for _, used, _, _ in sample.gpus.values() if used is not None]
        of_all[:, at] = (
            len(sample.gpus),
            sum(milli > 0 for _, _, _, milli in sample.gpus.values()),
            sum(uses) / 100 if uses else np.nan,
            sum(mem for _, _, mem, _ in sample.gpus.values()),
            sum(useds) if useds else np.nan,
            sample.waiting,
            max((wait_s for _, _, wait_s in sample.users.values()), default=0),
        )
        for key, (use, used, mem_mib, milli) in sample.gpus.items():
            if key not in found.gpus:
                found.gpus[key] = np.full((3, points), np.nan)
            found.gpus[key][:, at] = (
                np.nan if use is None else use,
                np.nan if used is None else used,
                milli,
            )
            found.gpu_mem_mib[key] = mem_mib
        for user, (milli, waiting, wait_s) in sample.users.items():
            if user not in found.users:
                found.users[user] = np.full((3, points), np.nan)
            found.users[user][:, at] = (milli / 1000, waiting, wait_s)
    for counts in found.users.values():  # a user of whom nothing is said holds nothing and waits for nothing
        counts[:, found.sampled & np.isnan(counts[0])] = 0
    return found


class Recent:
    """The samples in a file of a size that the cluster's size bounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._windows: dict[str, tuple[int, Window]] = {}

    def add(self, snapshots: Mapping[str, Snapshot], now_ms: int) -> None:
        """Keep a sample of this moment, and forget those that no picture shows. A full disk costs samples alone."""
        begin_ms = now_ms // HOUR.step_ms * HOUR.step_ms
        day_ms = now_ms // DAY.step_ms * DAY.step_ms
        try:
            with self._open() as store:
                _put(store, HOUR, begin_ms, sample_of(snapshots, now_ms))
                lately = list(_samples(store, HOUR, day_ms, begin_ms).values())
                _put(store, DAY, day_ms, mean_of(lately))
                for span in (HOUR, DAY):
                    oldest_ms = now_ms - span.points * span.step_ms
                    store.execute(
                        "DELETE FROM sample WHERE span = ? AND (begin_ms < ? OR begin_ms > ?)",
                        (span.name, oldest_ms, now_ms),
                    )
        except (sqlite3.OperationalError, OSError) as error:
            _log.warning("%s: a sample is lost: %s", self.path, error)
        except sqlite3.DatabaseError as error:
            _log.warning("%s: not a file of samples (%s); a new one is begun", self.path, error)
            with suppress(OSError):
                self.path.unlink(missing_ok=True)

    def window(self, span: Span, now_ms: int) -> Window:
        """The samples of a span up to now; those of the last moments are read once for all pages."""
        step = now_ms // HOUR.step_ms
        kept = self._windows.get(span.name)
        if kept is not None and kept[0] == step and kept[1].sampled[-1]:
            return kept[1]
        samples: Mapping[int, Sample] = {}
        try:
            if self.path.exists():
                with self._open() as store:
                    samples = _samples(store, span, now_ms - span.points * span.step_ms, now_ms)
        except (sqlite3.Error, OSError) as error:
            _log.warning("%s cannot be read: %s", self.path, error)
        window = window_of(span, samples, now_ms)
        self._windows[span.name] = (step, window)
        return window

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with closing(sqlite3.connect(self.path, timeout=10)) as store, store:
            store.execute("PRAGMA synchronous = NORMAL")
            store.execute(
                "CREATE TABLE IF NOT EXISTS sample"
                " (span TEXT, begin_ms INTEGER, body BLOB, PRIMARY KEY (span, begin_ms)) WITHOUT ROWID"
            )
            yield store


def _put(store: sqlite3.Connection, span: Span, begin_ms: int, sample: Sample) -> None:
    store.execute("REPLACE INTO sample VALUES (?, ?, ?)", (span.name, begin_ms, sample.packed()))


def _samples(store: sqlite3.Connection, span: Span, from_ms: int, to_ms: int) -> dict[int, Sample]:
    rows = store.execute(
        "SELECT begin_ms, body FROM sample WHERE span = ? AND begin_ms BETWEEN ? AND ? ORDER BY begin_ms",
        (span.name, from_ms, to_ms),
    )
    found = {}
    for begin_ms, body in rows:
        with suppress(*_UNREADABLE):
            found[begin_ms] = _unpacked(body)
    return found


def _unpacked(body: bytes) -> Sample:
    counts = json.loads(zlib.decompress(body))
    gpus = {(row[0], row[1], row[2]): (row[3], row[4], row[5], row[6]) for row in counts["gpus"]}
    return Sample(gpus, {user: tuple(each) for user, each in counts["users"].items()}, counts["waiting"])
