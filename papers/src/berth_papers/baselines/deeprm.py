"""`deeprm-max` and `deeprm-mean`: learned policies that are shown one demand of each job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from berth.arrays import BoolArray, IntArray
from berth.errors import SettingError
from berth.model import GpuModel
from berth.network.demands import Demand, Limits, checked_limits, demanded
from berth.network.model_file import Model
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.forecast import Forecaster, Forecasts
from berth.policies.colocation.forecast_scores import ForecastScores
from berth.policies.colocation.learned import SHIPPED, check_mode, model_named, model_shown, shipped_for
from berth.policies.colocation.scene import Scene, best_of
from berth.policies.protocol import Setting
from berth.profiles import series

MODELS = "berth_papers.baselines"
"""The package whose folder `models` has the models of the baselines."""
WHOLE_MILLI = 1000


class _DeepRm(Colocating):
    """What the two have in common: they believe that each job needs the same all the time."""

    which = ""
    demand: Demand

    def __init__(
        self, setting: Setting | None = None, model: Model | None = None, *, within: Limits = "card"
    ) -> None:
        self.limits = checked_limits(within)
        knowledge = (setting or Setting()).knowledge
        self.model = model or model_named(shipped_for(self.which, knowledge.speeds, MODELS), package=MODELS)
        check_mode(self.model, knowledge.speeds)
        super().__init__(self._chosen, knowledge)
        self._profiles_changed()

    def _profiles_changed(self) -> None:
        flat = {
            name: replace(profile, usage=demanded(profile.usage, self.demand))
            for name, profile in self.known.items()
        }
        self._believed = Forecaster(flat, self.knowledge.speeds)
        self._scores = ForecastScores(self.model.network, flat, self.work_us)

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> _DeepRm:
        """Made with the settings in a policy's name."""
        if odd := sorted(options.keys() - {"model", "within"}):
            raise SettingError(
                f"no setting '{odd[0]}'; there are model, a file that `berth train` wrote, and within, card or memory"
            )
        name = options.get("model")
        model = None if name is None else model_shown(cls.demand, cls.which, name, setting.seed, MODELS)
        return cls(setting, model, within=checked_limits(options.get("within", "card")))

    def _chosen(self, scene: Scene) -> IntArray:
        believed = self._believed.forecasts(scene.forecasts.offers, scene.gpu)
        allowed = believed.fits if self.limits == "memory" else self._within_card(believed, scene.gpu)
        score = self._scores(scene._replace(forecasts=believed), allowed)
        return best_of(score, allowed, believed)

    def _within_card(self, believed: Forecasts, gpu: GpuModel | None) -> BoolArray:
        """(O, C): where each resource's demands together stay within the card (Oh 2019, section IV.2)."""
        card = gpu or GpuModel("")
        each = [series(self._believed.profiles[name], card).usage[0] for name in believed.names]
        together = (believed.ends_ms > 0).astype(np.int64) @ np.array(each)[believed.application]  # (O, C, 4)
        return np.asarray(believed.fits & (together[..., [0, 2, 3]] <= WHOLE_MILLI).all(axis=-1))


class DeepRmMax(_DeepRm):
    """Taught by rollouts, assuming each job's peak use all the time: never out of memory, but often idle.

    Oh 2019, section V.1, after Mao et al., "Resource Management with Deep Reinforcement Learning", HotNets 2016.
    """

    which = "deeprm-max"
    demand = "peak"


class DeepRmMean(_DeepRm):
    """Taught by rollouts, assuming each job's mean use all the time: it runs out of memory if peaks meet.

    Oh 2019, section V.1, after Mao et al., "Resource Management with Deep Reinforcement Learning", HotNets 2016.
    """

    which = "deeprm-mean"
    demand = "mean"


def package_of(policy: str) -> str:
    """The package whose folder `models` has the models that ship for a policy that was taught by rollouts."""
    return MODELS if policy in (DeepRmMax.which, DeepRmMean.which) else SHIPPED
