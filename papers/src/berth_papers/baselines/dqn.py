"""The thesis's own method: a network of images says which of the combinations that stay within the card start."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from berth.arrays import IntArray
from berth.errors import ModelError, SettingError
from berth.network.capacity import within
from berth.network.combinations import combinations
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.learned import check_mode, shipped_for
from berth.policies.colocation.network_chooser import best_of
from berth.policies.colocation.scene import Scene
from berth.policies.colocation.seen_jobs import JobsSeen
from berth.policies.protocol import Setting
from berth_papers.baselines.deeprm import MODELS
from berth_papers.baselines.images import ImageModel, image_scores, read_image_model

WHOLE_MILLI = 1000


class Dqn(Colocating):
    """Start the combination that the thesis's network scores best, of those that stay within every capacity.

    Oh 2019, algorithms 1 and 2, with equation 2 mended (docs/learning.md). It knows no interference, so that what is
    slowed may meet what it was not to meet, and run out of memory. `model` is a file of `berth train --learner dqn`.
    """

    def __init__(self, setting: Setting | None = None, model: ImageModel | None = None) -> None:
        knowledge = (setting or Setting()).knowledge
        self.model = model or _shipped(shipped_for("dqn", knowledge.speeds, MODELS))
        check_mode(self.model, knowledge.speeds, refuse=False)
        super().__init__(self._chosen, knowledge, window=self.model.slots)
        self._seen = JobsSeen(self.model, self.known)

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> Dqn:
        """Made with the settings in a policy's name."""
        if odd := sorted(options.keys() - {"model"}):
            raise SettingError(
                f"no setting '{odd[0]}'; there is model, a file that `berth train --learner dqn` wrote"
            )
        name = options.get("model")
        if name is not None and not Path(name).is_file():
            raise ModelError(f"no model '{name}'; expected a file that `berth train --learner dqn` wrote")
        return cls(setting, None if name is None else read_image_model(Path(name)))

    def _profiles_changed(self) -> None:
        self._seen = JobsSeen(self.model, self.known)

    def _chosen(self, scene: Scene) -> IntArray:
        seen, model = self._seen.of(scene), self.model
        waiting = seen.waiting.shape[1]
        allowed = within(seen, combinations(waiting))
        whole = np.array([WHOLE_MILLI, int(seen.mem_mib[0]), WHOLE_MILLI, WHOLE_MILLI])
        jobs = np.zeros((len(allowed), model.slots, model.horizon, 4))
        jobs[:, :waiting] = seen.waiting / whole
        backlog = np.stack([seen.backlog_jobs, seen.backlog_ms // model.step_ms], axis=1)
        score = image_scores(model, seen.running.sum(axis=1) / whole, jobs, backlog)
        return best_of(score[:, : allowed.shape[1]], allowed, scene.forecasts)


@cache
def _shipped(name: str) -> ImageModel:
    with as_file(files(MODELS) / "models" / f"{name}.npz") as path:
        return read_image_model(path)
