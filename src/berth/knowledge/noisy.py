"""The oracle with seeded errors: what policies are worth where forecasts are wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, FloatArray, compiled
from berth.errors import SettingError
from berth.interference import Speeds, mode_of
from berth.interference.speeds import as_sets, effective_milli
from berth.knowledge.belief import Spread
from berth.knowledge.oracle import Oracle
from berth.model import FOREVER_MS, GpuModel, Job, Profile, Record, RecordState
from berth.profiles import peak_mem_mib

_NORMAL = NormalDist()
_TENTH = -_NORMAL.inv_cdf(0.1)
"""Standard deviations from the middle to the outer tenth."""
_GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@dataclass(frozen=True, slots=True)
class Noise:
    """How wrong the knowledge is: standard deviations of the logarithm of believed over true."""

    run: float = 0.0
    """Of the run time, for each job."""
    memory: float = 0.0
    """Of GPU memory, for each application."""
    pair: float = 0.0
    """Of how much a job is slowed, for each job among its neighbours."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("run", "memory", "pair"):
            if not 0 <= getattr(self, name) <= 3:
                raise SettingError(f"noise of {name} is {getattr(self, name):g}; expected from 0 to 3")
        if self.seed < 0:
            raise SettingError(f"the seed of the noise is {self.seed}; expected 0 or more")

    @property
    def is_nothing(self) -> bool:
        """Whether there are no errors at all."""
        return not (self.run or self.memory or self.pair)

    def of_run(self, seed: int) -> Noise:
        """The noise of a run with that seed: other errors of the same size, always the same for both seeds; seed 0
        has those of the noise itself."""
        if seed == 0:
            return self
        digest = blake2b(f"{self.seed}/run/{seed}".encode(), digest_size=6).digest()
        return replace(self, seed=int.from_bytes(digest, "big"))


class Noisy:
    """The oracle with an error in each answer, the same whenever it is asked: log-normal, drawn from the seed.

    It learns what its errors cost: a job that outlives its expectation is expected anew, and an application that ran
    out of memory is expected to need more than it held: half a standard deviation of the errors, at most an eighth.
    """

    learns = True

    def __init__(self, oracle: Oracle, noise: Noise) -> None:
        self.noise = noise
        self.certain = noise.is_nothing
        self._oracle = oracle
        self._mem_factor: dict[str, float] = {
            name: math.exp(noise.memory * _normal(noise.seed, "memory", name)) for name in oracle.profiles
        }
        self._profiles = {name: self._believed(name) for name in oracle.profiles}
        self.profiles: Mapping[str, Profile] = self._profiles
        self.speeds: Speeds = (
            NoisySpeeds(oracle.speeds, noise.pair, noise.seed) if noise.pair else oracle.speeds
        )
        self._ran_ms: dict[str, int] = {}
        self._ran_out_last: set[str] = set()

    def run_ms(self, job: Job) -> Spread | None:
        """The truth times the job's own factor; where it has outlived that, half as long again as it has run."""
        if job.work_ms is None:
            return None
        if job.work_ms >= FOREVER_MS:
            return Spread.exactly(job.work_ms)
        sigma = self.noise.run
        expected_ms = max(1, round(job.work_ms * math.exp(sigma * _normal(self.noise.seed, "run", job.id))))
        ran_ms = self._ran_ms.get(job.id, 0)
        if expected_ms <= ran_ms:
            expected_ms = ran_ms + max(1, ran_ms // 2)
        reach = math.exp(sigma * _TENTH)
        low_ms, high_ms = max(ran_ms, round(expected_ms / reach)), round(expected_ms * reach)
        return Spread(expected_ms, min(low_ms, expected_ms), max(high_ms, expected_ms))

    def profile(self, job: Job, gpu: GpuModel | None) -> Profile | None:
        """The true profile, its memory times the application's factor."""
        return self.profiles.get(job.application)

    def peak_mem_mib(self, job: Job, gpu: GpuModel | None = None) -> Spread | None:
        """The peak of the believed profile."""
        profile = self.profiles.get(job.application)
        if profile is None:
            return None
        peak_mib, reach = peak_mem_mib(profile), math.exp(self.noise.memory * _TENTH)
        return Spread(peak_mib, round(peak_mib / reach), round(peak_mib * reach))

    def usual_requests(self) -> Sequence[Job]:
        """The oracle's."""
        return self._oracle.usual_requests()

    def observe(self, record: Record) -> None:
        """Forget how long the job has run, and where it has completed that others did not."""
        self._ran_ms.pop(record.job_id, None)
        if record.state is RecordState.COMPLETED:
            self._ran_out_last.discard(record.application)

    def ran_out_of_memory(self, job: Job, held_mib: int) -> None:
        """Believe that the application needs more than it held, if that is more than was believed."""
        self._ran_out_last.add(job.application)
        self._held(job.application, held_mib)

    def ran_out_last(self, application: str) -> bool:
        """Whether a job of it ran out of memory, and none has completed since."""
        return application in self._ran_out_last

    def neighbour_ran_out(self, job: Job, held_mib: int) -> None:
        """The same of a neighbour that held more than was believed: it was the cause, and did not fail itself."""
        believed = self.profiles.get(job.application)
        if believed is not None and held_mib > peak_mem_mib(believed):
            self._held(job.application, held_mib)

    def outlived(self, job: Job, ran_ms: int) -> None:
        """Expect it to run on."""
        self._ran_ms[job.id] = max(ran_ms, 1)

    def _held(self, name: str, held_mib: int) -> None:
        if name not in self.profiles:
            return
        likely_mib = round(held_mib * math.exp(self.noise.memory / 2))
        wanted_mib = max(held_mib + 1, min(held_mib + held_mib // 8, likely_mib))
        believed_mib = peak_mem_mib(self.profiles[name])
        if wanted_mib > believed_mib:
            truth = self._oracle.profiles[name]
            peak_mib = truth.usage[:, 1].max() * truth.hardware.mem_mib
            grown = self._mem_factor[name] * wanted_mib / max(believed_mib, 1)
            self._mem_factor[name] = max(grown, (held_mib + 1) / max(peak_mib, 1))  # whatever is rounded
            self._profiles[name] = self._believed(name)

    def _believed(self, name: str) -> Profile:
        profile = self._oracle.profiles[name]
        factor = self._mem_factor[name]
        if factor == 1:
            return profile
        return replace(profile, usage=profile.usage * np.array([1.0, factor, 1.0, 1.0]))


class NoisySpeeds:
    """A function of speeds with an error in how much each tenant is slowed, drawn from its row and its neighbours'.

    Slowness is 1 / speed − 1; it is multiplied by the error, so that no job alone is slowed and none is faster than
    alone. NumPy only: the learning environment, which compiles speeds, is trained on the truth.
    """

    def __init__(self, speeds: Speeds, sigma: float, seed: int) -> None:
        self.speeds = speeds
        self.sigma = sigma
        self.seed = seed

    @property
    def mode(self) -> str:
        """That of the speeds that it errs about."""
        return mode_of(self.speeds)

    def effective_milli(self, usage: Any) -> Any:
        """As of the speeds that it errs about."""
        return effective_milli(self.speeds, usage)

    def __call__(self, usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
        """Speeds per mille: see `Speeds` for the shapes."""
        rows, there, shape = as_sets(np.asarray(usage), np.asarray(present))
        speeds = np.asarray(self.speeds(rows, there, capacity_mem_mib), dtype=np.int64)  # (N, K)
        drawn = np.zeros(there.shape)
        _draw(rows, there, np.uint64(self.seed % 2**64), np.zeros(shape[-1], np.uint64), drawn)
        error = np.exp(self.sigma * drawn)
        slowness = (1000 / np.maximum(speeds, 1) - 1) * error
        found = np.maximum(1, np.rint(1000 / (1 + slowness))).astype(np.int32)
        return np.where(there, np.where(speeds >= 1000, np.int32(1000), found), np.int32(0)).reshape(shape)

    def __eq__(self, other: object) -> bool:
        """The same function with the same error."""
        return isinstance(other, NoisySpeeds) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash((self.sigma, self.seed))

    def __repr__(self) -> str:
        return f"NoisySpeeds({getattr(self.speeds, '__qualname__', None) or self.speeds!r}, {self.sigma}, {self.seed})"

    def _parts(self) -> tuple[object, ...]:
        return self.speeds, self.sigma, self.seed


@lru_cache(maxsize=65_536)
def _normal(seed: int, *what: str) -> float:
    """A number from the standard normal distribution, always the same for the same words."""
    words = f"{seed}/{'/'.join(what)}"
    digest = blake2b(words.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return _NORMAL.inv_cdf((int.from_bytes(digest, "big") + 0.5) / 2**64)


@compiled
def _finish(z: np.uint64) -> np.uint64:
    """The finisher of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@compiled
def _draw(
    usage: NDArray[np.int32],  # (N, K, 4)
    present: BoolArray,  # (N, K)
    seed: np.uint64,
    mixed: NDArray[np.uint64],  # (K,): to work in
    out: FloatArray,  # (N, K)
) -> None:
    """A number of each tenant among its neighbours, in any order of these, close to the standard normal distribution:
    the sum of twelve uniform ones, less 6."""
    for at in range(present.shape[0]):
        total = np.uint64(0)
        for one in range(present.shape[1]):
            mixed[one] = seed
            for column in range(usage.shape[2]):
                row = np.uint64(usage[at, one, column])
                mixed[one] = _finish((mixed[one] ^ row) * _GOLDEN + np.uint64(column + 1))
            total += mixed[one] if present[at, one] else np.uint64(0)
        for one in range(present.shape[1]):
            if present[at, one]:
                drawn = _finish(mixed[one] * _GOLDEN + total - mixed[one])
                for step in range(12):
                    uniform = _finish(drawn + np.uint64(step) * _GOLDEN) >> np.uint64(11)
                    out[at, one] += uniform / 2.0**53
                out[at, one] -= 6.0
