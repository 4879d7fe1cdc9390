"""What drives the waits of a cluster, turned into settings of a policy that answers to it.

Kwon and Hong (KISTI), future work: to find the factors that drive waiting and to respond to them automatically.
Each driving factor has a response in berth's own policies; one is taken over only where a replay of the history
shows that it helps. Nothing of Slurm is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from berth.advice.advise import Advice, better
from berth.advice.replay import Outcome, replay
from berth.advice.workload import Workload
from berth.policies import Progress
from berth.policies.schemes.limit_settings import LimitSettings
from berth.waiting import Questions, WaitModel

NOTABLE: Final = 0.1
"""A factor that moves waits less than this part of all movement is not answered to."""
LOOKED_AT: Final = 5000
"""The number of last questions that tell what drives waits now."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One thing that waits depend on."""

    name: str
    """`load`, `own jobs`, `size`, `time limit`, `kind` or `time of day`."""
    share: float
    """Its part of all that moves the predicted waits."""
    features: tuple[str, ...]
    """The features that it is made of, the strongest first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One response that was replayed."""

    factor: str
    policy: str
    limits: bool
    """Whether the advised limit holds, too."""
    outcome: Outcome
    taken: bool


def _factor_of(feature: str) -> str:
    if feature.startswith(("waiting_", "running_")):
        return "load" if feature.endswith(("_all", "_server")) else "own jobs"
    return {
        **dict.fromkeys(("gpus", "nodes", "cpu_milli", "mem_mib", "gpu_model"), "size"),
        **dict.fromkeys(("user", "account"), "own jobs"),
        **dict.fromkeys(("hour", "weekday"), "time of day"),
        **dict.fromkeys(("application", "qos"), "kind"),
        "virtual_cluster": "load",
        "time_limit_ms": "time limit",
    }.get(feature, "kind")


def driving_factors(model: WaitModel, questions: Questions) -> tuple[Factor, ...]:
    """What moves the predicted waits of the last questions, the strongest first; the shares add up to 1."""
    moved = np.abs(model.contributions(questions.values[-LOOKED_AT:])).mean(axis=0)
    whole = float(moved.sum()) or 1.0
    parts: dict[str, list[tuple[float, str]]] = {}
    for name, amount in zip(model.names, moved.tolist(), strict=True):
        parts.setdefault(_factor_of(name), []).append((amount, name))
    found = [
        Factor(
            name,
            sum(amount for amount, _ in each) / whole,
            tuple(
                feature for amount, feature in sorted(each, key=lambda pair: (-pair[0], pair[1])) if amount
            )[:4],
        )
        for name, each in parts.items()
    ]
    return tuple(sorted(found, key=lambda factor: (-factor.share, factor.name)))


def _ordered(order: str) -> Callable[[str], str]:
    def change(policy: str) -> str:
        scheme, _, place = policy.split("+")
        return f"{scheme}+{order}+{place}"

    return change


def _placed(place: str) -> Callable[[str], str]:
    def change(policy: str) -> str:
        return "+".join([*policy.split("+")[:-1], place])

    return change


_RESPONSES: Final[dict[str, tuple[Callable[[str], str], ...]]] = {
    "own jobs": (_ordered("fair-share"),),
    "load": (_ordered("fair-share"),),
    "time limit": (_ordered("sjf-requested"),),
    "size": (_placed("fgd"), _ordered("sjf-requested")),
}
"""Changes of a policy SCHEME+ORDER+PLACEMENT, by the factor that they answer to. To `own jobs` and `load` the
advised limit is an answer, too."""


def respond(
    workload: Workload,
    advice: Advice,
    factors: tuple[Factor, ...],
    policy: str,
    progress: Progress | None = None,
) -> tuple[LimitSettings, tuple[Step, ...]]:
    """Answer to each notable factor in turn, and keep what makes the replay better than all that is kept so far.

    `policy` is SCHEME+ORDER+PLACEMENT, such as `easy+fifo+best-fit`; it believes what it did in
    the replays of the advice.
    """
    best, outcome, limited = policy, advice.now, False
    limit = advice.limit.proposal if advice.limit else None
    steps: list[Step] = []
    notable = [factor for factor in factors if factor.share >= NOTABLE]
    most = sum(
        len(_RESPONSES.get(factor.name, ())) + (factor.name in ("load", "own jobs") and limit is not None)
        for factor in notable
    )

    def tries(factor: str, changed: str, with_limit: bool) -> None:
        nonlocal best, outcome, limited
        if (changed, with_limit) == (best, limited):
            return
        name = limit.policy(changed) if with_limit and limit else changed
        if progress:
            progress(len(steps), most)
        found = replay(workload, name, knowledge=advice.knowledge)
        taken = better(outcome, found)
        steps.append(Step(factor, changed, with_limit, found, taken))
        if taken:
            best, outcome, limited = changed, found, with_limit

    for factor in notable:
        if factor.name in ("load", "own jobs") and limit:
            tries(factor.name, best, True)
        for change in _RESPONSES.get(factor.name, ()):
            tries(factor.name, change(best), limited)
    why: dict[str, Any] = {
        "factors": [
            {"factor": factor.name, "share": round(factor.share, 4), "features": list(factor.features)}
            for factor in factors
        ],
        "tried": [
            {
                "factor": step.factor,
                "policy": step.policy,
                "limit": step.limits,
                "typical_user_wait_s": round(step.outcome.typical_user_wait_s, 1),
                "wait_p90_s": round(step.outcome.wait_p90_s, 1),
                "utilisation_pct": round(step.outcome.utilisation_pct, 2),
                "taken": step.taken,
            }
            for step in steps
        ],
    }
    chosen = (limit.limit,) if limited and limit and limit.limit else ()
    return LimitSettings(chosen, best, why), tuple(steps)
