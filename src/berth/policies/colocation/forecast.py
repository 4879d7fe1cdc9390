"""What will come of starting jobs together on a GPU: when each ends, and whether memory runs out.

It is the simulator's own arithmetic on profiles, run ahead for every combination of a GPU's offered jobs at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.errors import SettingError
from berth.interference import Speeds
from berth.interference.known_speeds import BITS, MOST, move
from berth.model import GpuModel, Profile
from berth.network.combinations import MOST_SLOTS
from berth.policies.colocation.forecast_kernels import DONE, NOT_FRESH, REFUSED, SCRATCH, UNKNOWN, forecast
from berth.profiles import Series, series

__all__ = ["MOST", "Candidate", "Forecaster", "Forecasts", "Offer"]


FEW = 64
"""Profiles that are all entered into the table at once; with more, only those that are asked for."""
AT_ONCE = 4096
"""Sets of rows whose speeds are asked for at once, at most."""
FRESH = 1 << 15
"""Places for what comes of jobs that have all done nothing yet; half of them are used."""


class Candidate(NamedTuple):
    """A job as a forecast sees it."""

    application: str
    left_us: int
    """Work left, as run time alone, in microseconds."""
    work_us: int
    """All of its work."""
    ran_ms: int = 0
    """How long it has been running."""


class Offer(NamedTuple):
    """A GPU with room, and the waiting jobs that it is offered."""

    tenants: tuple[Candidate, ...]
    window: tuple[Candidate, ...]
    largest: int = MOST
    """The most jobs that may start together."""


@dataclass(frozen=True, slots=True, eq=False)
class Forecasts:
    """What becomes of each combination (O offers, C combinations, K places: tenants first, then the window)."""

    offers: tuple[Offer, ...]
    fits: NDArray[np.bool_]  # (O, C)
    """Whether it may be started: memory never runs out. Of combinations of the same applications the first."""
    ends_ms: IntArray  # (O, C, K)
    """After how long each job ends, 0 for those that take no part."""
    next_ms: IntArray  # (O,)
    """If none starts: how long until a job ends or enters a new row of its profile."""
    tenants: IntArray  # (O,)
    """How many run already; they have the first places."""
    window: IntArray  # (O,)
    """How many wait; they have the places behind the tenants."""
    names: tuple[str, ...]
    """Applications, some of which the offered jobs are of."""
    application: IntArray  # (O, K)
    """Which of them each job is of, 0 for an empty place."""
    left_us: IntArray  # (O, K)
    """Work left, 0 for an empty place."""
    work_us: IntArray  # (O, K)
    ran_ms: IntArray  # (O, K)
    """How long each has been running."""

    @property
    def total_ms(self) -> IntArray:
        """(O, C): how long until all have ended."""
        longest: IntArray = self.ends_ms.max(axis=2)
        return longest

    def alone_ms(self) -> IntArray:
        """(O, C): the work that each combination starts, as run time one after the other."""
        count = self.fits.shape[1]
        jobs = max(1, count.bit_length() - 1)
        at = np.minimum(self.tenants[:, None] + np.arange(jobs), self.left_us.shape[1] - 1)
        there = np.arange(jobs) < self.window[:, None]
        left_ms = np.where(there, -(-np.take_along_axis(self.left_us, at, axis=1) // 1000), 0)
        members = np.arange(count) >> np.arange(jobs)[:, None] & 1  # (M, C)
        work: IntArray = left_ms @ members
        return work


@dataclass(slots=True, eq=False)
class _Card:
    """One GPU model's series, and the speeds of sets of their rows as far as they are known."""

    capacity_mem: int
    applications: dict[str, int]
    first_row: IntArray
    row_class: IntArray
    class_mem: IntArray
    interval_ms: IntArray
    usage: NDArray[np.int32]  # (classes, 4)
    keys: IntArray
    known: IntArray
    fresh_keys: IntArray
    fresh_ends: IntArray
    entered: IntArray  # (2,): entries of the table of speeds, and of that of fresh jobs
    fresh: dict[Candidate, tuple[int, int, int, int, int]]
    """Jobs that have done nothing yet, each application and work once, as the compiled part sees them."""

    def entry(self, one: Candidate) -> tuple[int, int, int, int, int]:
        """A job as the compiled part sees it; only of one that has done nothing yet is the kind told."""
        application = self.applications[one.application]
        if one.left_us != one.work_us or one.ran_ms or len(self.fresh) >= (1 << BITS) - 1:
            return application, one.left_us, one.work_us, NOT_FRESH, one.ran_ms
        return self.fresh.setdefault(
            one, (application, one.left_us, one.work_us, len(self.fresh), one.ran_ms)
        )

    def grow(self) -> None:
        """A larger table with the same in it."""
        keys, known = self.keys, self.known
        self.keys = np.full((4 * len(keys), 2), -1, dtype=np.int64)
        self.known = np.zeros((4 * len(keys), MOST), dtype=np.int64)
        move(keys, known, self.keys, self.known)

    def forget(self) -> None:
        """Empty the table of speeds: what was asked for and not answered stands in it."""
        self.keys[:] = -1
        self.entered[0] = 0


_CARDS: dict[tuple[object, ...], _Card] = {}
"""What was asked once need not be asked again by the next forecaster of the same profiles and speeds."""
MOST_CARDS = 32


class Forecaster:
    """Runs the model of interference ahead, for GPUs of any model.

    An application without a profile cannot be forecast: ask `knows` first.
    """

    def __init__(self, profiles: Mapping[str, Profile], speeds: Speeds) -> None:
        self.profiles = profiles
        self.speeds = speeds
        self._cards: dict[GpuModel | None, _Card] = {}
        self._scaled: dict[tuple[str, GpuModel | None], Series] = {}
        self._scratch: IntArray = np.zeros((SCRATCH, MOST + MOST_SLOTS), dtype=np.int64)
        self._asked: IntArray = np.zeros((AT_ONCE, MOST + 2), dtype=np.int64)

    def knows(self, application: str) -> bool:
        """Whether there is a profile."""
        return application in self.profiles

    def fits_alone(self, application: str, gpu: GpuModel | None, work_ms: int) -> bool:
        """Whether its memory never exceeds the card's in this much work."""
        mem_mib = gpu.mem_mib if gpu else 0
        return mem_mib == 0 or self._series(application, gpu).peak_within(work_ms) <= mem_mib

    def peak_to_come_mib(self, one: Candidate, gpu: GpuModel | None) -> int:
        """The most memory that a job will use from now on, MiB."""
        found = self._series(one.application, gpu)
        first = found.row_at((one.work_us - one.left_us) // 1000)
        last = found.row_at(max(0, one.work_us // 1000 - 1))
        return max(row[1] for row in found.rows[first : last + 1])

    def forecasts(
        self, offers: Sequence[Offer], gpu: GpuModel | None, only: Sequence[int] | None = None
    ) -> Forecasts:
        """What becomes of every combination of each offer, on GPUs of one model; if `only` is given, of these,
        and the others do not fit. SettingError if an offer has more than `MOST_SLOTS` waiting jobs."""
        jobs = list(chain.from_iterable([offer.tenants + offer.window for offer in offers]))
        alike = {one: at for at, one in enumerate(dict.fromkeys(jobs))}
        card = self._card(gpu, alike)
        tenants = np.array([len(offer.tenants) for offer in offers], dtype=np.int64)
        window = np.array([len(offer.window) for offer in offers], dtype=np.int64)
        most_waiting = int(window.max(initial=0))
        if most_waiting > MOST_SLOTS:
            raise SettingError(f"{most_waiting} waiting jobs to combine; expected at most {MOST_SLOTS}")
        width = int((tenants + window).max(initial=1))
        entries: IntArray = np.array(
            [card.fresh.get(one) or card.entry(one) for one in alike], dtype=np.int64
        ).reshape(-1, 5)
        there: IntArray = np.zeros((len(offers), width, 5), dtype=np.int64)
        there[np.arange(width) < (tenants + window)[:, None]] = entries[[alike[one] for one in jobs]]
        largest = np.array([offer.largest for offer in offers], dtype=np.int64)
        combinations = 1 << most_waiting
        status: NDArray[np.int8] = np.where(
            np.arange(combinations) < (1 << window)[:, None], UNKNOWN, REFUSED
        ).astype(np.int8)
        if only is not None:
            status[:, ~np.isin(np.arange(combinations), only)] = REFUSED
        ends_ms = np.zeros((len(offers), combinations, width), dtype=np.int64)
        next_ms = np.zeros(len(offers), dtype=np.int64)
        while misses := forecast(
            card.capacity_mem, card.first_row, card.row_class, card.class_mem, card.interval_ms,
            card.keys, card.known, card.fresh_keys, card.fresh_ends, there, tenants, window, largest,
            status, ends_ms, next_ms, self._asked, card.entered, self._scratch,
        ):  # fmt: skip
            if misses < 0:
                card.grow()
            else:
                self._learn(card, self._asked[:misses])
        names, columns = tuple(card.applications), (there[..., at] for at in (0, 1, 2, 4))
        return Forecasts(tuple(offers), status == DONE, ends_ms, next_ms, tenants, window, names, *columns)

    def _card(self, gpu: GpuModel | None, jobs: Iterable[Candidate]) -> _Card:
        card = self._cards.get(gpu)
        asked = {one.application for one in jobs}
        known = card.applications.keys() if card else set()
        if card is None or not asked <= known:
            few = self.profiles.keys() if len(self.profiles) <= FEW else set()
            card = self._cards[gpu] = self._made(gpu, sorted(known | asked | few))
        return card

    def _made(self, gpu: GpuModel | None, applications: Sequence[str]) -> _Card:
        scaled = [self._series(name, gpu) for name in applications]
        mem_mib = gpu.mem_mib if gpu else 0
        key = self.speeds, mem_mib, tuple((one.interval_ms, one.usage.tobytes()) for one in scaled)
        if (same := _CARDS.get((*key, tuple(applications)))) is not None:
            return same
        lengths = [len(one.usage) for one in scaled]
        rows = np.concatenate([one.usage for one in scaled]) if scaled else np.zeros((0, 4), np.int32)
        usage, classes = np.unique(rows, axis=0, return_inverse=True)
        if len(usage) >= 1 << BITS:
            usage, classes = _coarser(rows)
        classes = classes.reshape(-1).astype(np.int64)
        if len(_CARDS) >= MOST_CARDS:
            _CARDS.clear()
        made = _CARDS[*key, tuple(applications)] = _Card(
            mem_mib,
            {name: at for at, name in enumerate(applications)},
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            classes,
            usage[:, 1].astype(np.int64),
            np.array([one.interval_ms for one in scaled], dtype=np.int64),
            usage,
            np.full((1 << 14, 2), -1, dtype=np.int64),
            np.zeros((1 << 14, MOST), dtype=np.int64),
            np.full((FRESH, 2), -1, dtype=np.int64),
            np.zeros((FRESH, MOST), dtype=np.int64),
            np.zeros(2, dtype=np.int64),
            {},
        )
        return made

    def _series(self, application: str, gpu: GpuModel | None) -> Series:
        found = self._scaled.get((application, gpu))
        if found is None:
            found = series(self.profiles[application], gpu or GpuModel(""))
            self._scaled[application, gpu] = found
        return found

    def _learn(self, card: _Card, asked: IntArray) -> None:
        """Ask the model for the speeds of sets of rows that it was not asked for before."""
        counts = asked[:, MOST]
        tenants = int(counts.max())
        present = np.arange(tenants) < counts[:, None]
        usage = np.where(present[:, :, None], card.usage[asked[:, :tenants]], 0)
        try:
            speeds = np.asarray(self.speeds(usage, present, card.capacity_mem))
        except BaseException:
            card.forget()
            raise
        card.known[asked[:, MOST + 1], :tenants] = speeds


def _coarser(rows: NDArray[np.int32]) -> tuple[NDArray[np.int32], IntArray]:
    """Rows rounded up to fewer different ones, and which of them each is: of profiles that are measured to the MiB."""
    step = 2
    while True:
        usage, classes = np.unique(-(-rows // step) * step, axis=0, return_inverse=True)
        if len(usage) < 1 << BITS:
            return usage, classes
        step *= 2
