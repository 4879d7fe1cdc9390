"""The thesis's own method: a network of images says which of the combinations that stay within the card start."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from berth.arrays import IntArray
from berth.errors import ModelError, SettingError
from berth.model import GpuModel
from berth.network.catalogue import NEVER_MS, Catalogue, left_cells, make_catalogue
from berth.network.combinations import combinations
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.learned import check_mode, shipped_for
from berth.policies.colocation.scene import Scene, best_of
from berth.policies.protocol import Setting
from berth.profiles import series
from berth_papers.baselines.deeprm import MODELS
from berth_papers.baselines.images import ImageModel, image_scores, read_image_model

WHOLE_MILLI = 1000


class Dqn(Colocating):
    """Start the combination that the thesis's network scores best, of those that stay within every capacity.

    Oh 2019, algorithms 1 and 2, with equation 2 corrected (docs/learning.md). It knows no interference, so slowed
    jobs may overlap unexpectedly and run out of memory. `model` is a file of `berth train --learner dqn`.
    """

    def __init__(self, setting: Setting | None = None, model: ImageModel | None = None) -> None:
        knowledge = (setting or Setting()).knowledge
        self.model = model or _shipped(shipped_for("dqn", knowledge.speeds, MODELS))
        check_mode(self.model, knowledge.speeds)
        super().__init__(self._chosen, knowledge, window=self.model.slots)
        self._catalogues: dict[tuple[GpuModel | None, tuple[str, ...]], Catalogue] = {}

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
        self._catalogues = {}

    def _chosen(self, scene: Scene) -> IntArray:
        model, forecasts, mem_mib = self.model, scene.forecasts, scene.gpu.mem_mib if scene.gpu else 0
        whole = np.array([WHOLE_MILLI, mem_mib or NEVER_MS, WHOLE_MILLI, WHOLE_MILLI])
        left_ms = np.minimum(-(-forecasts.left_us // 1000), NEVER_MS - 1).astype(np.int32)
        done_ms = (forecasts.work_us - forecasts.left_us) // 1000
        catalogue, horizon = self._catalogue(scene), (model.step_ms, model.horizon)
        cells = left_cells(catalogue, forecasts.application, done_ms, left_ms, *horizon, np)  # (O, K, H, 4)
        tenants = np.arange(left_ms.shape[1]) < forecasts.tenants[:, None]
        cluster = cells.sum(axis=1, where=tenants[..., None, None])
        slot = np.arange(max(1, int(forecasts.window.max())))
        place = np.minimum(forecasts.tenants[:, None] + slot, left_ms.shape[1] - 1)
        waits = slot < forecasts.window[:, None]  # (O, M)
        waiting = np.where(
            waits[..., None, None], np.take_along_axis(cells, place[..., None, None], axis=1), 0
        )
        members = combinations(len(slot))
        together = cluster[:, None] + np.tensordot(members, waiting, axes=(1, 1)).swapaxes(0, 1)
        # Each resource stays within the card at each step (Oh 2019, section IV.2), and no slot is empty.
        allowed = (together <= whole).all(axis=(-1, -2)) & ~(members & ~waits[:, None]).any(axis=-1)
        jobs = np.zeros((len(allowed), model.slots, model.horizon, 4))
        jobs[:, : len(slot)] = waiting / whole
        seen_ms = left_ms.sum(axis=1, where=~tenants)
        behind = np.maximum(scene.backlog_jobs - forecasts.window, 0)
        behind_ms = np.clip(scene.backlog_ms - seen_ms, 0, NEVER_MS)
        backlog = np.stack([behind, behind_ms // model.step_ms], axis=1)
        score = image_scores(model, cluster / whole, jobs, backlog)
        return best_of(score[:, : allowed.shape[1]], allowed, forecasts)

    def _catalogue(self, scene: Scene) -> Catalogue:
        names, gpu = scene.forecasts.names, scene.gpu or GpuModel("")
        found = self._catalogues.get((gpu, names))
        if found is None:
            scaled = [series(self.known[name], gpu) for name in names]
            usages = [one.usage.astype(np.int64) for one in scaled]
            intervals_ms = [one.interval_ms for one in scaled]
            found = self._catalogues[gpu, names] = make_catalogue(usages, intervals_ms, self.model.step_ms)
        return found


@cache
def _shipped(name: str) -> ImageModel:
    with as_file(files(MODELS) / "models" / f"{name}.npz") as path:
        return read_image_model(path)
