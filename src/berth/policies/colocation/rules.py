"""Choosers without a network, which `learned` has to beat: at random, by a tuned linear rule, by pairs of light jobs.

They see the forecasts that `greedy` and `learned` see, and start nothing that would run out of memory by these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.arrays import FloatArray, IntArray
from berth.errors import ModelError, SettingError
from berth.interference import mode_of
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.forecast import Forecasts
from berth.policies.colocation.scene import Scene, best_of
from berth.policies.colocation.shield import shielded
from berth.policies.options import settings_from
from berth.policies.protocol import Setting
from berth.profiles import series

TRAITS = 8
FULL_LINE_MS, NEAR_MS, LONG_MS = 600_000, 60_000, 300_000
"""As `berth.learning.queue_kernels` has them, by which rules are tuned."""
SEEN = 5


class RandomSharing(Colocating):
    """Start a random combination of those that fit and that the shield of `learned` allows.

    It shows what forecasts and shield achieve alone: an untrained network prefers some jobs, and does worse.
    """

    draws = True

    def __init__(self, setting: Setting | None = None) -> None:
        setting = setting or Setting()
        super().__init__(self._chosen, setting.knowledge)
        self._random = np.random.default_rng(setting.seed)

    def _chosen(self, scene: Scene) -> IntArray:
        allowed = shielded(scene)
        return best_of(self._random.random(allowed.shape), allowed, scene.forecasts)


class Rule(Colocating):
    """Start the combination with the largest weighted sum of eight features of its forecast, within the shield.

    Each feature has two weights, for a full and an empty queue: 16 numbers, found by random search on the sets that
    networks are trained on (`berth train --learner rule`). `?weights=FILE` takes others.
    """

    def __init__(self, setting: Setting | None = None, weights: FloatArray | None = None) -> None:
        knowledge = (setting or Setting()).knowledge
        super().__init__(self._chosen, knowledge)
        self.weights = shipped_weights(mode_of(knowledge.speeds)) if weights is None else weights

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> Rule:
        """Made with the settings in a policy's name."""
        if odd := sorted(options.keys() - {"weights"}):
            raise SettingError(
                f"no setting '{odd[0]}'; there is weights, a file that `berth train --learner rule` wrote"
            )
        path = options.get("weights")
        return cls(setting, None if path is None else _weights(path, _read(Path(path))))

    def _chosen(self, scene: Scene) -> IntArray:
        return best_of(rule_scores(scene, self.weights), shielded(scene), scene.forecasts)


def rule_scores(scene: Scene, weights: FloatArray) -> FloatArray:
    """(O, C): what a rule of these weights (2, 8) says of each combination."""
    full = min(1.0, scene.backlog_ms / FULL_LINE_MS)
    scores: FloatArray = traits(scene.forecasts) @ (weights[0] * full + weights[1] * (1 - full))
    return scores


def traits(forecasts: Forecasts) -> FloatArray:
    """What a rule goes by, (O, C, 8): joint progress; the sum of mean speeds, to the end and in the next minute; how
    many start; the longest of them; the first end; how many run; whether it holds."""
    ends_ms = forecasts.ends_ms  # (O, C, K)
    there = ends_ms > 0
    left_ms = np.where(there, (forecasts.left_us / 1000)[:, None], 0.0)
    speed = left_ms / np.maximum(ends_ms, 1)
    new = there & (np.arange(ends_ms.shape[2]) >= forecasts.tenants[:, None])[:, None]
    found = [
        left_ms.sum(axis=2) / np.maximum(forecasts.total_ms, 1),
        speed.sum(axis=2),
        (speed * np.minimum(ends_ms, NEAR_MS) / NEAR_MS).sum(axis=2),
        new.sum(axis=2) / SEEN,
        np.where(new, left_ms, 0.0).max(axis=2) / LONG_MS,
        np.where(there.any(axis=2), np.where(there, ends_ms, 1 << 60).min(axis=2), 0) / LONG_MS,
        there.sum(axis=2) / SEEN,
        ~new.any(axis=2),
    ]
    return np.stack([np.asarray(one, np.float64) for one in found], axis=-1)


@cache
def shipped_weights(mode: str) -> FloatArray:
    """The weights that ship for a mode; those of `mps` for one that has none."""
    places = files("berth.network") / "models"
    place = places / f"rule-{mode}.json"
    if not place.is_file():
        place = places / "rule-mps.json"
    return _weights(str(place), place.read_text())


def _read(path: Path) -> str:
    if not path.is_file():
        raise ModelError(f"no weights '{path}'; expected a file that `berth train --learner rule` wrote")
    return path.read_text()


def _weights(name: str, text: str) -> FloatArray:
    try:
        found = np.array(json.loads(text)["weights"], dtype=np.float64)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{name}: not the weights of a rule ({error}); expected JSON with 2 × {TRAITS} weights"
        ) from error
    if found.shape != (2, TRAITS) or not np.isfinite(found).all():
        raise ModelError(f"{name}: weights of shape {found.shape}; expected 2 × {TRAITS} finite numbers")
    return found


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How `pair-packer` judges jobs."""

    light: float = 0.3
    """A job that uses less of the GPU than this on average is tiny, and scores 0."""
    heavy: float = 0.7
    """One that uses more is jumbo, and scores 2; what is in between scores 1."""
    most: int = 2
    """Two jobs share a GPU where their scores add up to this at most."""

    def __post_init__(self) -> None:
        if not 0 <= self.light <= self.heavy <= 1 or not 0 <= self.most <= 4:
            chosen = ", ".join(f"{one.name} {getattr(self, one.name):g}" for one in fields(self))
            raise SettingError(f"{chosen}; expected 0 ≤ light ≤ heavy ≤ 1 and most from 0 to 4")


class PairPacker(Colocating):
    """At most two jobs share a GPU, if their scores of use add up to little; the lightest pair first.

    The idea of Lucid: jobs are tiny, medium or jumbo by their use, and no knowledge of interference is needed (Hu et
    al., "Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs", ASPLOS 2023).
    Lucid's scores come from a decision tree over its measured pairs; here from mean GPU use.
    """

    def __init__(self, setting: Setting | None = None, settings: PairSettings | None = None) -> None:
        self.settings = settings or PairSettings()
        super().__init__(self._chosen, (setting or Setting()).knowledge)

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> PairPacker:
        """Made with the settings in a policy's name."""
        return cls(setting, settings_from(PairSettings, options))

    def _chosen(self, scene: Scene) -> IntArray:
        forecasts, settings = scene.forecasts, self.settings
        use = np.array([self._use(name, scene) for name in forecasts.names])[forecasts.application]  # (O, K)
        score = np.where(use < settings.light, 0, np.where(use > settings.heavy, 2, 1))
        there = forecasts.ends_ms > 0  # (O, C, K)
        count = there.sum(axis=2)
        light = (score[:, None] * there).sum(axis=2) <= settings.most
        allowed = forecasts.fits & ((count <= 1) | ((count == 2) & light))
        allowed[:, 0] = forecasts.fits[:, 0]
        return best_of(10.0 * count - (use[:, None] * there).sum(axis=2), allowed, forecasts)

    def _use(self, name: str, scene: Scene) -> float:
        """Mean GPU use of an application on a card, as a fraction."""
        if name not in self.known or scene.gpu is None:
            return 1.0
        return float(series(self.known[name], scene.gpu).usage[:, 0].mean()) / 1000


def rule_bytes(weights: NDArray[np.float32], command: str, figures: Mapping[str, float]) -> bytes:
    """The file of a rule's weights (2, 8), the command that finds them, and what came of it."""
    found = {"weights": np.round(np.asarray(weights, np.float64), 6).tolist(), "command": command}
    return (json.dumps(found | {"figures": dict(figures)}, indent=1) + "\n").encode()
