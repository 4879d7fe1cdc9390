"""The environment for other people's agents: Gymnasium's interface, with masks of the allowed actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.learning.environment import Environment, Observation
from berth.learning.jobsets import JobSets
from berth.network.catalogue import NEVER_MS

Shown = dict[str, Any]
"""Arrays by their names; int32."""


class GymEnvironment(gym.Env[Shown, np.int64]):
    """An episode is about one set of jobs, drawn by the seed; an action that is not allowed counts as holding.

    Observations are `cluster` (H, 4), `jobs` (M, H, 4), `backlog` (2,) as in `Observation`, and `action_mask` (C,);
    `action_masks()` gives the mask as agents of sb3-contrib ask for it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  Gymnasium's own declaration

    def __init__(self, environment: Environment, sets: JobSets) -> None:
        self.environment = environment
        self.sets = sets
        horizon, slots, actions = environment.task.horizon, environment.settings.slots, environment.actions
        self.action_space = spaces.Discrete(actions)
        self.observation_space = spaces.Dict(
            {
                "cluster": spaces.Box(0, NEVER_MS, (horizon, 4), np.int32),
                "jobs": spaces.Box(0, NEVER_MS, (slots, horizon, 4), np.int32),
                "backlog": spaces.Box(0, NEVER_MS, (2,), np.int32),
                "action_mask": spaces.Box(0, 1, (actions,), np.int32),
            }
        )
        self._reset, self._step = jax.jit(environment.reset), jax.jit(environment.step)
        self._observe, self._over = jax.jit(environment.observe), jax.jit(environment.over)
        self._state: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shown, dict[str, Any]]:
        """Begin with a set of jobs; `options={"set": 3}` names it."""
        super().reset(seed=seed)
        count = len(self.sets.work_ms)
        at = int((options or {}).get("set", self.np_random.integers(count)))
        self._state = self._reset(self.sets.take(at))
        return self._shown(), {"set": at, "now_ms": 0}

    def step(self, action: np.int64) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        """Hold, or start a combination. Raises SettingError for what is no action of the space."""
        if not self.action_space.contains(action):
            raise SettingError(
                f"action {action!r}; expected a whole number from 0 to {self.environment.actions - 1}"
            )
        self._state, reward = self._step(self._state, int(action))
        over = bool(self._over(self._state))
        return self._shown(), float(reward), over, False, {"now_ms": int(self._state.now_ms)}

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are allowed now, (C,)."""
        return np.asarray(self._observe(self._state).mask)

    def _shown(self) -> Shown:
        seen: Observation = self._observe(self._state)
        found = {
            "cluster": seen.cluster,
            "jobs": seen.jobs,
            "backlog": seen.backlog,
            "action_mask": seen.mask,
        }
        return {name: np.asarray(array).astype(np.int32) for name, array in found.items()}
