"""What every learner is: how it begins, what one iteration does, and the network that it has by then."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from jax import Array

__all__ = ["Figures", "Learner"]


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
    settings: Any
    """How it learns; a checkpoint tells it."""

    def begin(self, seed: int) -> Any:
        """The state before the first iteration; the same for a seed."""

    def iterate(self, state: Any) -> tuple[Any, Figures]:
        """One iteration: play, then learn from it. Compiled by the caller."""

    def network(self, state: Any) -> Any:
        """The network as it is now, a tree of arrays."""
