"""How fast jobs on one GPU advance together, from pairs that were measured: a table between measured applications.

    speed_i = min(1 / (1 + Σ_j stress_ij), what is left of the card)

Each measured application is a *centre*: its use of the card, rounded to a cell. The table has the stress of each
centre beside each other one, as a fit says it. A row of use that was not measured is stressed as a mean of the
centres close to it, and presses as the hardest centre that uses no more than it of anything. So more use by a
neighbour never helps; stress is never negative, so that no job is faster than alone or for a neighbour more.

What is left of the card: the tenants' *effective* use (`effective_milli`), their use of the cores, and that of the
PCIe link each add up to at most the whole. What is asked for beyond that is shared in proportion. No triple was ever
measured; with this, three tenants or more get no more of the card in sum than the measured pairs show.

Use does not tell all of an application. A file may name those that were measured: between two of them a second table
says the stress, in which use orders no more than the settings of one model (`among`).
Whole numbers all through, within 32 bits: logarithms and powers are tables. Letters as in `speeds`; C centres.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, IntArray, compiled
from berth.errors import SettingError
from berth.interference.speeds import CORES, GPU, MEM, PCIE, as_sets, slowest, what_is_left

STEPS = (10, 10, 64)
"""Size of a cell: GPU and cores in per mille, memory in MiB."""
LEAST_MEM_MIB = 4096
"""Memory in use below this counts as this: how little a job holds does not tell how little it presses."""
STRESS_ONE = 1000
"""Stress at which the speed is one half."""
MOST_STRESS = 32_000
MOST_CENTRES = 500
MOST_CELLS = 512
"""In the table of cells that were met."""
FORMAT, VERSION = "berth-contention", 2
MODES = ("mps", "time-sliced")
"""Under which pairs can be measured. Time slicing lets no kernels overlap, so that use is kernel time itself."""

_OCTAVE = 20
"""Memory twice as large is as far as this many cells of GPU or cores."""
_FARTHEST = 32_767
"""Squared distances beyond this count as this."""
_FALL_ONE = 64
"""One halving in the table of how weight falls with distance."""
_WEIGHT_ONE = 128
"""Weight of the closest centre."""
_AT_ONCE = 4_000_000
HIGH, MIDDLE = 40, 24
"""Where GPU and cores stand in the number of a cell; memory has the bits below."""

Int32Array = NDArray[np.int32]


def cells_of(usage: Any, *, xp: Any = np) -> Any:
    """The cell that each row of use falls into: int32 (..., 4) to (..., 3): GPU, cores, memory, each rounded down."""
    mem = xp.clip(usage[..., MEM], LEAST_MEM_MIB, 2**20)
    rows = [xp.clip(usage[..., GPU], 0, 1000), xp.clip(usage[..., CORES], 0, 1000), mem]
    return xp.stack([row // step for row, step in zip(rows, STEPS, strict=True)], axis=-1).astype(xp.int32)


@dataclass(frozen=True, eq=False, repr=False)
class Contention:
    """A fitted model; called as `Speeds` are."""

    mode: str
    """How the GPU was shared when the pairs were measured: one of `MODES`."""
    use_milli: int
    """The effective use of an application that keeps the GPU busy all of the time, per mille of what the card has."""
    centres: Int32Array
    """(C, 3): the cells of the measured applications."""
    stress: Int32Array
    """(C, C): of the first beside the second, in `STRESS_ONE`."""
    names: Mapping[str, int] = field(default_factory=dict)
    """The centre of each application that is known by name."""
    named: Int32Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    """(C, C): `stress` of applications that are known by name."""

    def __call__(self, usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
        """Speeds per mille: see `Speeds` for the shapes."""
        found = self._compiled(usage, present) if xp is np else None
        return self.plain(usage, present, xp=xp) if found is None else found

    def plain(self, usage: Any, present: Any, *, xp: Any) -> Any:
        """The same in NumPy or JAX; NumPy asks `speeds_by_cells`, which a test holds equal."""
        return self._slowed(self._each(usage, xp), usage, present, xp)

    def among(self, usage: Any, present: Any, centre: IntArray) -> Int32Array:
        """The same where `centre` (..., K) is that of each tenant in `names`, -1 for one that is not named."""
        known = centre >= 0
        both = known[..., :, None] & known[..., None, :]
        named = self.named[centre[..., :, None], centre[..., None, :]]
        found: Int32Array = self._slowed(np.where(both, named, self._each(usage, np)), usage, present, np)
        return found

    def _slowed(self, stress: Any, usage: Any, present: Any, xp: Any) -> Any:
        """Speeds by the stress of each beside each, (..., K, K)."""
        busy = present & (usage[..., GPU] > 0)
        tenants = present.shape[-1]
        others = xp.broadcast_to(~xp.eye(tenants, dtype=bool), (*present.shape, tenants))
        meets = busy[..., :, None] & busy[..., None, :] & others
        total = xp.sum(xp.where(meets, stress, 0), axis=-1, dtype=xp.int32)
        speeds = xp.int32(1000 * STRESS_ONE) // (STRESS_ONE + total)
        return slowest(xp.minimum(speeds, self.left(usage, present, xp=xp)), present, xp=xp)

    def effective_milli(self, usage: Any) -> Any:
        """What each row takes of the card when it is alone: (..., 4) to (...), per mille of what the card has."""
        return usage[..., GPU] * self.use_milli // 1000

    def left(self, usage: Any, present: Any, *, xp: Any = np) -> Any:
        """The speeds at which nothing is used beyond the whole card: int32 (..., K)."""
        columns = (self.effective_milli(usage), usage[..., CORES], usage[..., PCIE])
        shared = [what_is_left(column, present, xp=xp) for column in columns]
        return xp.minimum(xp.minimum(shared[0], shared[1]), shared[2])

    def felt(self, usage: Any, *, xp: Any = np) -> Any:
        """The stress of each row beside each centre: int32 (..., 4) to (..., C)."""
        logs, fall, weights, centre_logs, stress = self._tables
        cell = cells_of(usage, xp=xp)
        mem = xp.asarray(logs)[xp.minimum(cell[..., 2], len(logs) - 1)]
        leading = (1,) * (cell.ndim - 1)
        centres = [self.centres[:, 0], self.centres[:, 1], centre_logs]
        own = [cell[..., 0], cell[..., 1], mem]
        sides = [
            one[..., None] - xp.asarray(centre.reshape(*leading, -1))
            for one, centre in zip(own, centres, strict=True)
        ]
        far = sides[0] * sides[0] + sides[1] * sides[1] + sides[2] * sides[2]  # (..., C)
        fallen = xp.asarray(fall)[xp.minimum(far, _FARTHEST)]
        fallen = fallen - xp.min(fallen, axis=-1, keepdims=True)
        weight = xp.asarray(weights)[xp.minimum(fallen, len(weights) - 1)]
        total = xp.sum(weight, axis=-1, keepdims=True, dtype=xp.int32)
        if xp is np:  # whole numbers far below 2^53: as exact as in integers, and compiled
            return (weight.astype(np.float64) @ stress.astype(np.float64) // total).astype(np.int32)
        return (weight @ xp.asarray(stress) // total).astype(xp.int32)

    def pressing(self, usage: Any, *, xp: Any = np) -> Any:
        """Which centres use no more than each row, of anything: bool (..., 4) to (..., C)."""
        cell = cells_of(usage, xp=xp)
        centres = self.centres.reshape(*(1,) * (cell.ndim - 1), -1, 3)
        return xp.all(cell[..., None, :] >= xp.asarray(centres), axis=-1)

    def stress_between(self, usage: Any, neighbours: Any) -> Int32Array:  # (A, 4), (B, 4) to (A, B)
        """How much each of the first is stressed by each of the second; none where either leaves the GPU idle."""
        stress = self._stress(self.felt(usage), self.pressing(neighbours), np)
        meets = (usage[:, GPU] > 0)[:, None] & (neighbours[:, GPU] > 0)
        found: Int32Array = np.where(meets, stress, 0).astype(np.int32)
        return found

    def _compiled(self, usage: Any, present: Any) -> Int32Array | None:
        """Speeds from a table of the cells that were met before; None where these are too many for one."""
        rows, there, shape = as_sets(usage, present)
        found = np.empty(there.shape, np.int32)
        work = np.empty(shape[-1], np.int64)
        known, stress = self._met["cells"]
        if not speeds_by_cells(rows, there, known, stress, self.use_milli, work, found):
            known, stress = self._with_cells_of(rows[there], known, stress)
            if not speeds_by_cells(rows, there, known, stress, self.use_milli, work, found):
                return None
        return found.reshape(shape)

    def table(self, usage: Int32Array) -> tuple[IntArray, Int32Array]:
        """The cells of these rows of use (A, 4), and others, and the stress between them: for `speeds_by_cells`."""
        self._compiled(usage[:, None], np.ones((len(usage), 1), np.bool_))
        return self._met["cells"]

    def _with_cells_of(
        self, rows: Int32Array, before: IntArray, between: Int32Array
    ) -> tuple[IntArray, Int32Array]:
        """The table of known cells, (n,) and (n, n), with those of these rows (A, 4) as well; as it was if they are too
        many."""
        cells = cells_of(rows).astype(np.int64)
        keys = (cells[:, 0] << HIGH) | (cells[:, 1] << MIDDLE) | cells[:, 2]
        known = np.union1d(before, keys)
        if len(known) > MOST_CELLS:
            known = np.unique(keys)
        if len(known) > MOST_CELLS:
            return self._met["cells"]
        of_cells = np.zeros((len(known), 4), dtype=np.int32)
        parts = (known >> HIGH, known >> MIDDLE & 0xFFFF, known & 0xFFFFFF)
        for column, part, step in zip((GPU, CORES, MEM), parts, STEPS, strict=True):
            of_cells[:, column] = part * step
        felt, pressing = self.felt(of_cells), self.pressing(of_cells)
        new, kept = ~np.isin(known, before), np.isin(before, known)
        stress = np.zeros((len(known), len(known)), np.int32)
        stress[np.ix_(~new, ~new)] = between[np.ix_(kept, kept)]
        stress[new] = self._stress(felt[new], pressing, np)
        stress[:, new] = self._stress(felt, pressing[new], np)
        found = known, stress
        self._met["cells"] = found  # in one step: other threads see both or neither
        return found

    @cached_property
    def _met(self) -> dict[str, tuple[IntArray, Int32Array]]:
        """The cells that were met before, (n,) ascending, and the stress between them, (n, n)."""
        return {"cells": (np.zeros(0, np.int64), np.zeros((0, 0), np.int32))}

    def _each(self, usage: Any, xp: Any) -> Int32Array:
        """The same without a table."""
        found: Int32Array = self._stress(self.felt(usage, xp=xp), self.pressing(usage, xp=xp), xp)
        return found

    def _stress(self, felt: Any, pressing: Any, xp: Any) -> Any:
        """(..., A, C) and (..., B, C) to (..., A, B)."""
        if (
            xp is np and felt.size * pressing.shape[-2] > _AT_ONCE
        ):  # a centre at a time, for the memory that it takes
            found = np.zeros((*felt.shape[:-1], pressing.shape[-2]), dtype=np.int32)
            for at in range(felt.shape[-1]):
                neighbours = np.where(pressing[..., None, :, at], felt[..., :, None, at], 0)
                np.maximum(found, neighbours, out=found)
            return found
        return xp.max(xp.where(pressing[..., None, :, :], felt[..., :, None, :], 0), axis=-1)

    @cached_property
    def _tables(self) -> tuple[Int32Array, ...]:
        """Logarithms of memory cells, how weight falls with squared distance, the weights, and the centres' own."""
        cells = np.arange(1, 2 * LEAST_MEM_MIB // STEPS[2] * 16)
        logs = np.concatenate([[0], np.rint(_OCTAVE * np.log2(cells))]).astype(np.int32)
        distance = np.arange(
            _FARTHEST + 1
        )  # Shepard's weights: 1 / (squared distance + 0.1) to the power of 1.5
        fall = np.rint(_FALL_ONE * 1.5 * np.log2(10 * distance + 1)).astype(np.int32)
        weights = np.floor(_WEIGHT_ONE * 2.0 ** (-np.arange(8 * _FALL_ONE) / _FALL_ONE)).astype(np.int32)
        centre_logs = logs[np.minimum(self.centres[:, 2], len(logs) - 1)]
        return logs, fall, weights, centre_logs, np.minimum(self.stress, MOST_STRESS).astype(np.int32)

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Contention({self.mode}, {len(self.centres)} centres {self._digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contention) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def to_json(self) -> str:
        """The coefficients as text, a centre a line: its cell, and its stress beside each centre."""
        head = {"format": FORMAT, "version": VERSION, "mode": self.mode, "use_milli": self.use_milli}
        rows = ",\n".join(
            json.dumps([*centre, *row], separators=(",", ":"))
            for centre, row in zip(self.centres.tolist(), self.stress.tolist(), strict=True)
        )
        by_name = {"names": dict(self.names), "named": self.named.tolist()} if self.names else {}
        end = json.dumps(by_name, separators=(",", ":"))[1:-1]
        return (
            json.dumps(head)[:-1] + ', "centres": [\n' + rows + "\n]" + (",\n" + end if end else "") + "}\n"
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> Contention:
        """Read what `to_json` wrote; SettingError, naming `where`, for anything else."""
        expected = f"expected a model written by `berth interference fit` ({FORMAT} {VERSION})"
        try:
            read = json.loads(text)
            if read["format"] != FORMAT or read["version"] != VERSION:
                raise SettingError(
                    f"{where} is {read['format']} {read['version']}; {expected}: fit it again to your measurements"
                )
            mode, use_milli, count = read["mode"], int(read["use_milli"]), len(read["centres"])
            rows = np.array(read["centres"], dtype=np.int64).reshape(count, 3 + count)
            names = {str(name): int(centre) for name, centre in read.get("names", {}).items()}
            named = np.array(read.get("named", []), dtype=np.int64).reshape(
                (count, count) if names else (0, 0)
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise SettingError(f"{where} cannot be read: {error}; {expected}") from error
        if mode not in MODES:
            raise SettingError(f"{where} was measured under '{mode}'; expected {' or '.join(MODES)}")
        centres, stress = rows[:, :3], rows[:, 3:]
        beyond = count > MOST_CENTRES or not 1 <= use_milli <= 1000 or (rows < 0).any() or (named < 0).any()
        beyond = beyond or (stress > MOST_STRESS).any() or (named > MOST_STRESS).any()
        beyond = beyond or (centres > 2**20 // np.array(STEPS)).any()
        if beyond or any(not 0 <= centre < count for centre in names.values()):
            raise SettingError(f"{where} has coefficients beyond reason; {expected}")
        tables = [one.astype(np.int32) for one in (centres, stress, named)]
        return cls(mode, use_milli, tables[0], tables[1], names, tables[2])


@compiled
def speeds_by_cells(
    usage: Int32Array,  # (N, K, 4)
    present: BoolArray,  # (N, K)
    known: IntArray,  # (n,): numbers of cells, ascending
    stress: Int32Array,  # (n, n)
    use_milli: int,
    cell: IntArray,  # (K,): to work in
    found: Int32Array,  # (N, K), out
) -> bool:
    """`Contention.plain` of N sets, from a table of cells; False where it lacks one."""
    tenants = present.shape[1]
    for at in range(present.shape[0]):
        gpu, cores, pcie = 0, 0, 0
        for one in range(tenants):
            cell[one] = -1
            if not present[at, one]:
                continue
            row = usage[at, one]
            gpu += row[GPU] * use_milli // 1000
            cores += row[CORES]
            pcie += row[PCIE]
            if row[GPU] <= 0:
                continue
            key = min(row[GPU], 1000) // STEPS[0] << HIGH
            key |= min(max(row[CORES], 0), 1000) // STEPS[1] << MIDDLE
            key |= min(max(row[MEM], LEAST_MEM_MIB), 2**20) // STEPS[2]
            place = np.searchsorted(known, key)
            if place >= len(known) or known[place] != key:
                return False
            cell[one] = place
        gpu, cores, pcie = (
            1_000_000 // max(gpu, 1000),
            1_000_000 // max(cores, 1000),
            1_000_000 // max(pcie, 1000),
        )
        for one in range(tenants):
            if not present[at, one]:
                found[at, one] = 0
                continue
            total = 0
            for other in range(tenants):
                if other != one and cell[one] >= 0 and cell[other] >= 0:
                    total += stress[cell[one], cell[other]]
            row = usage[at, one]
            speed = min(1000 * STRESS_ONE // (STRESS_ONE + total), 1000)
            speed = min(speed, gpu if row[GPU] * use_milli // 1000 > 0 else 1000)
            speed = min(speed, cores if row[CORES] > 0 else 1000)
            speed = min(speed, pcie if row[PCIE] > 0 else 1000)
            found[at, one] = max(speed, 1)
    return True
