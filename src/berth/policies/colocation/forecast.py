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
from berth.interference.known_speeds import MOST
from berth.model import GpuModel, Profile
from berth.network.combinations import MOST_SLOTS
from berth.network.forecast_network import PEAK_MEM, uses_of
from berth.policies.colocation.cards import Card, card_of
from berth.policies.colocation.future_kernels import (
    DONE,
    REFUSED,
    UNKNOWN,
    WORK_ROWS,
    forecast,
)
from berth.profiles import Series, series

FEW = 64
"""Profiles that are all entered into the table at once; with more, only those that are asked for."""


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


class Forecaster:
    """Runs the model of interference ahead, for GPUs of any model.

    An application without a profile cannot be forecast: ask `knows` first.
    """

    def __init__(self, profiles: Mapping[str, Profile], speeds: Speeds) -> None:
        self.profiles = profiles
        self.speeds = speeds
        self._cards: dict[GpuModel | None, Card] = {}
        self._scaled: dict[tuple[str, GpuModel | None], Series] = {}
        self._parts: dict[tuple[str, GpuModel | None], tuple[float, float]] = {}
        self._jobs: IntArray = np.zeros((MOST, 3), dtype=np.int64)
        self._scratch: IntArray = np.zeros((WORK_ROWS + 2, MOST + MOST_SLOTS), dtype=np.int64)

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

    def uses(self, application: str, gpu: GpuModel | None) -> tuple[float, float]:
        """The parts of a card that an application uses: of its compute on average, of its memory at most."""
        found = self._parts.get((application, gpu))
        if found is None:
            used = uses_of([self._series(application, gpu)], gpu.mem_mib if gpu else 0)[0]
            found = self._parts[application, gpu] = float(used[0]), float(used[PEAK_MEM])
        return found

    def forecasts(self, offers: Sequence[Offer], gpu: GpuModel | None) -> Forecasts:
        """What becomes of every combination of each offer, on GPUs of one model.

        SettingError if an offer has more than `MOST_SLOTS` waiting jobs."""
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
            [(card.applications[one.application], one.left_us, one.work_us, one.ran_ms) for one in alike],
            np.int64,
        ).reshape(-1, 4)
        there: IntArray = np.zeros((len(offers), width, 4), dtype=np.int64)
        there[np.arange(width) < (tenants + window)[:, None]] = entries[[alike[one] for one in jobs]]
        largest = np.array([offer.largest for offer in offers], dtype=np.int64)
        combinations = 1 << most_waiting
        status: NDArray[np.int8] = np.where(
            np.arange(combinations) < (1 << window)[:, None], UNKNOWN, REFUSED
        ).astype(np.int8)
        ends_ms = np.zeros((len(offers), combinations, width), dtype=np.int64)
        next_ms = np.zeros(len(offers), dtype=np.int64)
        while True:
            forecast(
                card.arrays,
                card.row_us,
                card.rows,
                there,
                tenants,
                window,
                largest,
                status,
                ends_ms,
                next_ms,
                self._jobs,
                self._scratch,
            )
            if not card.lacks_speeds:
                break
            card.learn()
        names, columns = tuple(card.applications), (there[..., at] for at in range(4))
        return Forecasts(tuple(offers), status == DONE, ends_ms, next_ms, tenants, window, names, *columns)

    def _card(self, gpu: GpuModel | None, jobs: Iterable[Candidate]) -> Card:
        card = self._cards.get(gpu)
        asked = {one.application for one in jobs}
        known = card.applications.keys() if card else set()
        if card is None or not asked <= known:
            few = self.profiles.keys() if len(self.profiles) <= FEW else set()
            names = sorted(known | asked | few)
            mem_mib = gpu.mem_mib if gpu else 0
            scaled = [self._series(name, gpu) for name in names]
            card = self._cards[gpu] = card_of(names, scaled, mem_mib, self.speeds)
        return card

    def _series(self, application: str, gpu: GpuModel | None) -> Series:
        found = self._scaled.get((application, gpu))
        if found is None:
            found = series(self.profiles[application], gpu or GpuModel(""))
            self._scaled[application, gpu] = found
        return found
