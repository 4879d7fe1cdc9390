"""What every learner is: how it is made and begins, what one iteration does, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jax import Array

from berth.interference import Speeds
from berth.learning.domains import Domain
from berth.learning.jobsets import Task
from berth.network.demands import Demand
from berth.network.forecast_network import ForecastNetwork
from berth.network.model_file import Model


class Figures(NamedTuple):
    """What one iteration saw; float32 ()."""

    episode_return: Array
    """Mean return of the episodes that ended in it, undiscounted; not a number where none did."""
    loss: Array
    decisions: Array
    """How many it took, over all environments."""


class Learner(Protocol):
    """Pure functions; whatever changes is in the state, a tree of arrays, so that it can be kept and gone on with."""

    name: str
    compiled: bool
    """Whether JAX may compile `iterate`."""

    def begin(self, seed: int) -> Any:
        """The state before the first iteration; the same for a seed."""

    def iterate(self, state: Any) -> tuple[Any, Figures]:
        """One iteration: play, then learn from it. Compiled by the caller."""

    def network(self, state: Any) -> Any:
        """The network as it is now, a tree of arrays."""


class LearnerInputs(NamedTuple):
    """What a learner is made of."""

    domains: Sequence[Domain]
    """Of one task, unless there is a family of worlds."""
    slots: int
    """Waiting jobs that are seen, M."""
    shown: Demand
    start: ForecastNetwork | None


class MadeLearner(NamedTuple):
    """A learner, and what networks are worth: total time over that of all jobs in turn, on the validation sets."""

    learner: Learner
    worth: Callable[[Any], float]
    """If a network decides."""
    greedy: Callable[[], float] | None
    """If `greedy` does; None for learners that are not shown what it goes by."""


class TrainedFile(NamedTuple):
    """What a model's file is made of."""

    learner: Learner
    network: Any
    task: Task
    step_ms: int
    """Of one step of the horizon."""
    slots: int
    shown: Demand
    interference: tuple[str, ...]
    workloads: tuple[str, ...]
    figures: Mapping[str, float]
    command: str


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """How a learner is made, what it is shown of a job, and what file a policy decides by."""

    make: Callable[[LearnerInputs], MadeLearner]
    shown: Demand = "series"
    file: Callable[[TrainedFile], bytes] | None = None
    """None if no policy decides by what it learns."""
    shipped: Callable[[Speeds], Model] | None = None
    """The model that ships for these speeds, to begin with; None if it can begin with no model."""
    families: bool = False
    """Whether it learns in many worlds."""
