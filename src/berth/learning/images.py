"""Images as the thesis draws them: for each resource a field of 0 and 1, a row a step, filled as far as it is used."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from berth.network.ranks import to_rank


def fields(amounts: Any, capacity: Any, units: int) -> Array:
    """Fields of 0 and 1 (Oh 2019, figure 7): bool (..., 4, H, units) of amounts (..., H, 4).

    A resource's `capacity` (4,) is `units` wide; a unit of which only a part is used is filled. What is beyond the
    capacity is not drawn. The environment's observations are the amounts themselves, which say the same in less.
    """
    wanted = jnp.asarray(amounts) * units
    filled = -(-wanted // to_rank(jnp.asarray(capacity), wanted.ndim))  # (..., H, 4)
    drawn: Array = jnp.moveaxis(filled, -1, -2)[..., None] > to_rank(jnp.arange(units), wanted.ndim + 1)
    return drawn
