"""Learned co-location: a trained network chooses which of the waiting jobs start together on each GPU.

Oh, *A Job Placement Using Reinforcement Learning in GPU Virtualization Environment*, MSc thesis, Sookmyung Women's
University, 2019: algorithm 2. The models that ship decide in plain NumPy; `berth train` makes others.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from itertools import chain, combinations, islice, product
from math import ceil, exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.cluster import Cluster
from berth.errors import ModelError, SettingError
from berth.interference import MODES, Speeds, mode_of
from berth.knowledge import LONGEST_MS, Spread
from berth.model import GpuModel, Job, Profile
from berth.network.demands import Demand
from berth.network.forecast_network import new_network
from berth.network.model_file import Model, TrainedModel, read_model
from berth.network.pair_network import PairNetwork, read_pair_network
from berth.policies.colocation.forecast import Candidate, Forecasts, Offer
from berth.policies.colocation.forecast_scores import ForecastScores
from berth.policies.colocation.greedy import joint_progress
from berth.policies.colocation.pairs import Pairs
from berth.policies.colocation.scene import Scene, best_of
from berth.policies.colocation.shield import shielded
from berth.policies.options import settings_from
from berth.policies.protocol import Setting
from berth.profiles import BEGUN, RUNNING, run_time_ms

SHIPPED = "berth.network"
"""The package whose folder `models` has the models that ship."""
UNTRAINED, PAIRS = "untrained", "pairs"
MOST_PAIRS = 10_000
MOST_LOOKED_AT, MOST_KINDS = 1000, 20
"""Most jobs, and kinds of them, that are looked through for two that fit beside one another."""
PART = 0.3
"""How far from the middle of a belief to its upper tenth forecasts of memory go: errors of jobs that share a GPU cancel
in part, and 0.6 forbids starts worth more than the attempts that run out of memory at 0.3 (bench/results/place.md)."""
TENTH = 1.2816
"""Standard deviations from the middle of a belief to its upper tenth."""
LENGTH_ERROR = 0.7
"""By how much run times are taken to differ from the length of their application's profile: the standard deviation of
the logarithm, a factor of two. Beliefs that are no wider are trusted as they are."""
SEEN = ("history", "outlived", "profile")
"""Bases of beliefs that rest on the profile or on earlier runs already."""
SCORE_S = 5.0
"""What a difference of 1 between scores of the network is taken to be worth, in seconds."""
NOT_SLOWED = 1.02
"""A job that takes no longer than this times its run time alone is not slowed (Oh 2019, section V.3.2)."""


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """How `learned` decides."""

    window: int = 5
    """How many waiting jobs, the first of the queue, are combined: M. The network decides on any number."""
    unslowed: float = 0.0
    """What a job that is not slowed is worth, in seconds of total time: 0 looks at total time alone. Each combination
    pays this for every job that it is predicted to slow by more than 2 % and that was not slowed before."""
    shield: int = 1
    """1: no combination is started that would end later together than one after the other or, on several GPUs, that
    costs more time than if each job waited for an empty one; 0: as the network says."""
    plans: int = 120
    """On one GPU where all is known: how many changes of rules are followed to the end of the queue, besides the rules
    and the network, of which the best is done. Where beliefs are in doubt, the network is followed after its two best
    starts. 0: the network decides."""

    def __post_init__(self) -> None:
        if self.shield not in (0, 1):
            raise SettingError(f"shield is {self.shield}; expected 0 or 1")
        if not 1 <= self.window <= 10:
            raise SettingError(f"window is {self.window}; expected from 1 to 10")
        if not 0 <= self.plans <= 10_000:
            raise SettingError(f"plans is {self.plans}; expected from 0 to 10000")
        if not 0 <= self.unslowed <= 1e6:
            raise SettingError(f"unslowed is {self.unslowed:g} s; expected from 0 to 1,000,000")


class Learned(Pairs):
    """A trained network chooses the combination, and a shield refuses what would end later together than in turn or, on
    several GPUs, costs more time than to wait for an empty one.

    On several GPUs it compares all pairs of a waiting job and a GPU instead, as `pairs` does, within the same shield;
    another network, `pairs`, corrects what each pair costs.
    It never starts what its forecast says will run out of memory. Where no job offered fits beside another, or beside
    a tenant as that was when it began, one runs after the other, and *when* the next may load is forecast exactly:
    as soon as predicted joint progress says so; where that holds of all that wait, joint progress says which as well.
    `model` is a file that `berth train` wrote, by default the model that ships for these speeds; `model=untrained` is a
    network that has learned nothing.
    """

    def __init__(
        self,
        setting: Setting | None = None,
        settings: LearnedSettings | None = None,
        model: Model | None = None,
        pairs: PairNetwork | None = None,
    ) -> None:
        self.settings = settings or LearnedSettings()
        setting = setting or Setting()
        knowledge = setting.knowledge
        self.model = model or model_named(shipped_for("learned", knowledge.speeds))
        check_mode(self.model, knowledge.speeds)
        super().__init__(setting, choose=self._chosen, window=self.settings.window)
        self.network = pairs if pairs is not None else pair_network_named(PAIRS)
        self.scores = self._network_scores()
        self._pairs: dict[tuple[GpuModel | None, Candidate, Candidate], bool] = {}
        self._prepare()

    def _prepare(self) -> None:
        """What policies that build on this one set up, when all else is there."""

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> Learned:
        """Made with the settings in a policy's name."""
        chosen = dict(options)
        name, pairs = chosen.pop("model", None), chosen.pop("pairs", PAIRS)
        settings = [field.name for field in fields(LearnedSettings)]
        if odd := sorted(chosen.keys() - set(settings)):
            raise SettingError(f"no setting '{odd[0]}'; there are model, pairs, {', '.join(settings)}")
        model = None if name is None else model_shown("series", "learned", name, setting.seed)
        return cls(setting, settings_from(LearnedSettings, chosen), model, pair_network_named(pairs))

    def _network_scores(self) -> ForecastScores:
        return ForecastScores(self.model.network, self.known, self.work_us)

    def compares(self, cluster: Cluster) -> bool:
        """On several GPUs, unless its settings ask for the network itself."""
        mine = self.settings
        by_itself = not mine.plans or not mine.shield or mine.unslowed or self.model.learner == UNTRAINED
        return not by_itself and sum(node.gpus for node in cluster.nodes) > 1

    def _profiles_changed(self) -> None:
        self.scores = self._network_scores()
        self._pairs = {}

    def _needed_mib(self, job: Job) -> int | None:
        """A part of the way from the middle of what is believed to its upper tenth."""
        high_mib, spread = super()._needed_mib(job), self.knowledge.peak_mem_mib(job)
        if high_mib is None or spread is None:
            return high_mib
        middle_mib = min(spread.expected, high_mib)
        return ceil(middle_mib + PART * (high_mib - middle_mib))

    def _expected_ms(self, spread: Spread, profile: Profile) -> int:
        """The mean of what is believed and of the profile's length, by their logarithms. The wider one counts less."""
        wide = log(max(1.0, min(spread.high, LONGEST_MS) / spread.expected)) / TENTH
        if wide <= LENGTH_ERROR or profile.kind in (BEGUN, RUNNING) or spread.basis in SEEN:
            return int(spread.expected)
        part = LENGTH_ERROR**2 / (LENGTH_ERROR**2 + wide**2)
        return round(exp(part * log(spread.expected) + (1 - part) * log(run_time_ms(profile))))

    def allowed(self, scene: Scene) -> NDArray[np.bool_]:
        """(O, C): the combinations among which the network chooses."""
        return shielded(scene) if self.settings.shield else scene.forecasts.fits

    def _chosen(self, scene: Scene) -> IntArray:
        forecasts = scene.forecasts
        allowed = self.allowed(scene)
        learned = self.model.learner != UNTRAINED
        if learned and not self.settings.unslowed and self._never_combines(scene):
            return best_of(joint_progress(forecasts), allowed, forecasts)
        score = self.scores(scene, allowed)
        if self.settings.unslowed:
            score -= self.settings.unslowed / SCORE_S * slowed_jobs(forecasts)
        best = best_of(score, allowed, forecasts)
        waits = np.flatnonzero((best == 0) & allowed[:, 1:].any(axis=1))
        alone = [at for at in waits if not self._combines(forecasts.offers[at], scene.gpu)]
        if alone and not self.settings.unslowed:
            allowed[:, 0] &= best_of(joint_progress(forecasts), allowed, forecasts) == 0
            best[alone] = best_of(score, allowed, forecasts)[alone]
        return best

    def _never_combines(self, scene: Scene) -> bool:
        """Whether no two of all that wait or run fit beside one another as they begin: then no job need be kept."""
        tenants = (
            (one.application, one.work_us) for offer in scene.forecasts.offers for one in offer.tenants
        )
        waiting = ((job.application, self.work_us(job)) for job in islice(scene.queue, MOST_LOOKED_AT + 1))
        kinds: dict[tuple[str, int], Candidate] = {}
        for at, kind in enumerate(chain(tenants, waiting)):
            if kind in kinds:
                continue
            if at >= MOST_LOOKED_AT or len(kinds) == MOST_KINDS or not self.forecaster.knows(kind[0]):
                return False
            one = kinds[kind] = Candidate(kind[0], kind[1], kind[1])
            if any(self._fit(other, one, scene.gpu) for other in kinds.values()):
                return False
        return len(kinds) > 0 and at < MOST_LOOKED_AT

    def _combines(self, offer: Offer, gpu: GpuModel | None) -> bool:
        """Whether any job offered fits beside another one, or beside a tenant as that was when it began."""
        begun = (Candidate(one.application, one.work_us, one.work_us) for one in offer.tenants)
        pairs = (*combinations(offer.window, 2), *product(begun, offer.window))
        return any(self._fit(one, other, gpu) for one, other in pairs)

    def _fit(self, one: Candidate, other: Candidate, gpu: GpuModel | None) -> bool:
        found = self._pairs.get((gpu, one, other))
        if found is None:
            if len(self._pairs) >= MOST_PAIRS:
                self._pairs.clear()
            found = bool(self.forecaster.forecasts([Offer((), (one, other))], gpu).fits[0, 3])
            self._pairs[gpu, one, other] = found
        return found


def slowed_jobs(forecasts: Forecasts) -> IntArray:
    """(O, C): how many jobs a combination slows by more than 2 % that none has slowed so far."""
    work_ms = np.where(forecasts.work_us > 0, -(-forecasts.work_us // 1000), 1 << 60)
    ends_ms = forecasts.ran_ms[:, None] + forecasts.ends_ms
    late = (forecasts.ends_ms > 0) & (ends_ms > NOT_SLOWED * work_ms[:, None])
    before = late[:, :1]  # which are late even if none starts
    found: IntArray = (late & ~before).sum(axis=2)
    return found


def check_mode(model: TrainedModel, speeds: Speeds) -> None:
    """Warn of a model that was trained for other ways of sharing GPUs than these speeds.

    One that was trained for none, and speeds that are of none, go with all.
    """
    mode = mode_of(speeds)
    if mode not in MODES or not model.interference or mode in model.interference:
        return
    _warn(
        f"the model of {model.learner} was trained for {', '.join(model.interference)}, and here GPUs are shared by"
        f" {mode}; train one with `berth train --interference {mode}`"
    )


@cache
def _warn(words: str) -> None:
    logging.getLogger(__name__).warning(words)


def shipped_for(name: str, speeds: Speeds, package: str = SHIPPED) -> str:
    """The name of the model that ships for the mode of these speeds, whatever their errors, else of that for `mps`."""
    own = f"{name}-{mode_of(speeds)}"
    return own if _file(package, own).is_file() else f"{name}-mps"


def model_named(name: str, seed: int = 0, package: str = SHIPPED) -> Model:
    """The model that ships under a name, one of a file, or an untrained one; ModelError where it cannot be read."""
    if name == UNTRAINED:
        shipped = _read(SHIPPED, "learned-mps")  # it sees what the trained ones see
        return replace(shipped, network=new_network(seed), learner=UNTRAINED, interference=(), figures={})
    for shipping in (package, SHIPPED):
        if _file(shipping, name).is_file():
            return _read(shipping, name)
    path = Path(name)
    if not path.is_file():
        raise ModelError(f"no model '{name}'; expected a file that `berth train` wrote")
    return read_model(path)


def model_shown(demand: Demand, policy: str, name: str, seed: int = 0, package: str = SHIPPED) -> Model:
    """The model of a policy that is shown this of jobs; ModelError for one that was trained on another view."""
    model = model_named(name, seed, package)
    if model.demand != demand:
        raise ModelError(
            f"model '{name}' learned from the {model.demand} of jobs; {policy} is shown their {demand}: use one that"
            f" `berth train --learner {policy}` wrote"
        )
    return model


def _file(package: str, name: str) -> Traversable:
    return files(package) / "models" / f"{name}.npz"


@cache
def pair_network_named(name: str) -> PairNetwork:
    """The network over pairs that ships, `pairs`, or one of a file; ModelError if it cannot be read."""
    if name != PAIRS:
        return read_pair_network(Path(name))
    with as_file(_file(SHIPPED, PAIRS)) as path:
        return read_pair_network(path)


@cache
def _read(package: str, name: str) -> Model:
    with as_file(_file(package, name)) as path:
        return read_model(path)
