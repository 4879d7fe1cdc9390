"""`deeprm-max` and `deeprm-mean`: learned policies that are shown one demand of each job."""

from __future__ import annotations

from berth.arrays import IntArray
from berth.errors import SettingError
from berth.network.capacity import Limits, checked_limits
from berth.network.catalogue import Demand
from berth.network.model_file import Model
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.learned import SHIPPED, check_mode, model_named, model_shown, shipped_for
from berth.policies.colocation.network_chooser import NetworkScores, best_of
from berth.policies.colocation.scene import Scene
from berth.policies.protocol import Setting

MODELS = "berth_papers.baselines"
"""The package whose folder `models` has the models of the baselines."""


class _DeepRm(Colocating):
    """What the two have in common: they believe one demand, and know of no interference."""

    which = ""
    demand: Demand

    def __init__(
        self, setting: Setting | None = None, model: Model | None = None, *, within: Limits = "card"
    ) -> None:
        self.limits = checked_limits(within)
        knowledge = (setting or Setting()).knowledge
        self.model = model or model_named(shipped_for(self.which, knowledge.speeds, MODELS), package=MODELS)
        check_mode(self.model, knowledge.speeds, refuse=False)
        super().__init__(self._chosen, knowledge, window=self.model.slots)
        self.scores = NetworkScores(self.model, self.known, knowledge.speeds)

    def _profiles_changed(self) -> None:
        self.scores = NetworkScores(self.model, self.known, self.knowledge.speeds)

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
        allowed = self.scores.within(scene, self.limits)
        return best_of(self.scores(scene, allowed), allowed, scene.forecasts)


class DeepRmMax(_DeepRm):
    """Taught by rollouts too, shown each job's peak use for all of its run: never out of memory, often left idle.

    Oh 2019, section V.1, after Mao et al., "Resource Management with Deep Reinforcement Learning", HotNets 2016.
    """

    which = "deeprm-max"
    demand = "peak"


class DeepRmMean(_DeepRm):
    """Taught by rollouts too, shown each job's mean use for all of its run: it runs out of memory where peaks meet.

    Oh 2019, section V.1, after Mao et al., "Resource Management with Deep Reinforcement Learning", HotNets 2016.
    """

    which = "deeprm-mean"
    demand = "mean"


def package_of(policy: str) -> str:
    """The package whose folder `models` has the models that ship for a policy that was taught by rollouts."""
    return MODELS if policy in (DeepRmMax.which, DeepRmMean.which) else SHIPPED
