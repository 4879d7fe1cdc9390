"""The combination of best predicted joint progress, chosen anew each time a GPU has room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.errors import SettingError
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.forecast import Forecasts
from berth.policies.colocation.scene import Scene, best_of
from berth.policies.options import settings_from
from berth.policies.protocol import Setting


@dataclass(frozen=True, slots=True)
class GreedySettings:
    """How `greedy` looks."""

    window: int = 5
    """How many waiting jobs, the first of the queue, are combined."""

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 10:
            raise SettingError(f"window is {self.window}; expected from 1 to 10")


class Greedy(Colocating):
    """Start the combination with the best predicted joint progress; wait if no new job improves it.

    Joint progress is the work of a GPU's tenants, as run time alone, divided by the time until all of them end. The
    forecasts are exact, and no job that would run out of memory is started. `learned` has to beat it.
    """

    def __init__(self, setting: Setting | None = None, settings: GreedySettings | None = None) -> None:
        chosen = settings or GreedySettings()
        knowledge = (setting or Setting()).knowledge
        super().__init__(best_progress, knowledge, window=chosen.window)

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> Greedy:
        """Made with the settings in a policy's name."""
        return cls(setting, settings_from(GreedySettings, options))


def best_progress(scene: Scene) -> IntArray:
    """(O,): the combination of the best joint progress that fits."""
    return best_of(joint_progress(scene.forecasts), scene.forecasts.fits, scene.forecasts)


def joint_progress(forecasts: Forecasts) -> NDArray[np.float64]:
    """(O, C): work of all that run, as run time alone, over the time until all have ended; 0 for none."""
    runs = np.arange(forecasts.left_us.shape[1]) < forecasts.tenants[:, None]
    there_ms = np.where(runs, forecasts.left_us, 0).sum(axis=1) / 1000
    work_ms = there_ms[:, None] + forecasts.alone_ms()
    return np.asarray(work_ms / np.maximum(forecasts.total_ms, 1))
