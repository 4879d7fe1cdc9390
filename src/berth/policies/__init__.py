"""Every policy by its name, and how orders and placements compose.

A registry maps a name to an import string, so that running one policy imports no other. To add one: one file,
one line here.
"""

from __future__ import annotations

import difflib
import inspect
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from berth.errors import PolicyError, check_kind
from berth.own_code import named_thing
from berth.policies.options import options_of
from berth.policies.protocol import (
    ByRunTimes,
    Configurable,
    Decision,
    GivesMore,
    KeepsGpus,
    Order,
    Orderable,
    Place,
    Policy,
    Progress,
    Resizing,
    Resuming,
    Searching,
    Setting,
    Wrapping,
)
from berth.policies.schemes.strict import Giving, Ordered
from berth.policies.sort_keys import OfQueue

ORDERS = {
    "fifo": "berth.policies.orders:fifo",
    "priority": "berth.policies.orders:priority",
    "sjf": "berth.policies.orders:sjf",
    "sjf-requested": "berth.policies.orders:sjf_requested",
    "sjf-estimated": "berth.policies.orders:sjf_estimated",
    "sjf-expected": "berth.policies.orders:SjfExpected",
    "longest-expected": "berth.policies.orders:LongestExpected",
    "largest-first": "berth.policies.orders:largest_first",
    "deadline-first": "berth.policies.orders:deadline_first",
    "fair-share": "berth.policies.orders:FairShare",
    "least-attained-service": "berth.policies.orders:LeastAttainedService",
    "gavel": "berth.policies.orders:Gavel",
}
"""Which waiting job comes first: functions of the queue, or of the queue, the cluster and the time."""

PLACEMENTS = {
    "first-fit": "berth.policies.placements.first_fit:FirstFit",
    "best-fit": "berth.policies.placements.by_score:BestFit",
    "random": "berth.policies.placements.by_score:Random",
    "dot-product": "berth.policies.placements.by_score:DotProduct",
    "gpu-packing": "berth.policies.placements.by_score:GpuPacking",
    "gpu-clustering": "berth.policies.placements.by_score:GpuClustering",
    "fgd": "berth.policies.placements.by_score:Fgd",
    "round-robin": "berth.policies.placements.first_fit:RoundRobin",
    "tetris": "berth.policies.placements.by_score:Tetris",
    "fastest-fit": "berth.policies.placements.first_fit:FastestFit",
    "worst-fit": "berth.policies.placements.by_score:WorstFit",
    "whole-gpus": "berth.policies.placements.by_score:WholeGpus",
}
"""Where one job goes: classes made with a Setting."""

SCHEMES = {
    "easy": "berth.policies.schemes.easy:Easy",
    "conservative": "berth.policies.schemes.conservative:Conservative",
    "preempt": "berth.policies.schemes.preempt:ByPriority",
    "passing": "berth.policies.schemes.easy:Passing",
}
"""What else may happen while the first job of an order does not fit; without one, nothing does."""

WRAPPERS = {
    "headroom": "berth.policies.schemes.headroom:Headroom",
    "limits": "berth.policies.schemes.limits:Limits",
}
"""What stands around any other policy: classes with `around(rest of the name, settings, Setting)`."""

POLICIES: dict[str, str] = {
    "genetic": "berth.policies.genetic.policy:Genetic",
    "elastic": "berth.policies.elastic:Elastic",
    "greedy": "berth.policies.colocation.greedy:Greedy",
    "tetris-sharing": "berth.policies.colocation.tetris_sharing:TetrisSharing",
    "pairs": "berth.policies.colocation.pairs:Pairs",
    "learned": "berth.learning.planned_policy:LearnedWithPlans",
    "random-sharing": "berth.policies.colocation.rules:RandomSharing",
    "rule": "berth.policies.colocation.rules:Rule",
    "pair-packer": "berth.policies.colocation.rules:PairPacker",
    "rollouts": "berth.learning.rollout_policy:RolloutPolicy",
}
"""What decides on many jobs at once: classes made with a Setting. `policies_found` adds those of other packages."""


def is_oracle(name: str, knowledge: str = "oracle") -> bool:
    """Whether a policy chooses by true run times, which no real scheduler knows: a bound to compare with."""
    registry = ORDERS | policies_found()
    paths = [registry.get(bare, bare) for bare in (options_of(part)[0] for part in name.split("+"))]
    things = [_load(path) for path in paths if ":" in path]
    used = {thing.run_times for thing in things if isinstance(thing, ByRunTimes)}
    return "true" in used or (knowledge == "oracle" and "believed" in used)


@cache
def policies_found() -> dict[str, str]:
    """POLICIES, and those that other installed packages declare as entry points of the group `berth.policies`."""
    return POLICIES | {found.name: found.value for found in entry_points(group="berth.policies")}


def names() -> list[str]:
    """Every name that `make_policy` knows, orders first."""
    return [*ORDERS, *PLACEMENTS, *SCHEMES, *WRAPPERS, *policies_found()]


def describe(name: str) -> str:
    """The first line of a policy's docstring."""
    thing = _load({**ORDERS, **PLACEMENTS, **SCHEMES, **WRAPPERS, **policies_found()}[name])
    return (inspect.getdoc(thing) or "").split("\n", 1)[0]


def make_policy(name: str, setting: Setting | None = None) -> Policy:
    """The policy of that name.

    `ORDER+PLACEMENT` composes the two; a placement alone takes `fifo`, an order alone `first-fit`. Before them may
    stand what happens while the first job waits: `easy+sjf+best-fit`, `preempt+fgd`. A part with a colon,
    `my.module:thing`, is the user's own: in a sum an order (a function of the queue, or of the queue, the cluster
    and the time) and a placement (a function of a job and the cluster), alone a policy. A class is made with
    `setting` first. With quotas in the setting every order serves each virtual cluster within its own.
    A policy that has settings takes them as in `genetic?budget_ms=200&fragmentation=0.5`. Around any of them may stand
    `limits`, with settings of its own: `limits?user_gpus=8+easy+fifo`.

    Raises PolicyError where there is no such name, or what it names cannot be what it should.
    """
    check_kind(name, str, "make_policy takes the name of a policy, such as 'sjf+best-fit'")
    setting = setting or Setting()
    outer, _, rest = name.partition("+")
    wrapper, settings = options_of(outer)
    if wrapper in WRAPPERS:
        wrapping: Wrapping = _load(WRAPPERS[wrapper])
        return wrapping.around(rest, settings, setting)
    parts = name.split("+")
    scheme = parts.pop(0) if parts[0] in SCHEMES else ""
    if len(parts) > 2 or not all(parts) or not (scheme or parts):
        raise PolicyError(
            f"no policy '{name}'; a policy is NAME or ORDER+PLACEMENT, such as sjf+best-fit, optionally after one of"
            f" the schemes {', '.join(SCHEMES)}"
        )
    bare, options = options_of(name)
    if len(parts) == 1 and not scheme and (_decides_on_many(bare) or ":" in name):
        thing = _load(policies_found()[bare] if _decides_on_many(bare) else name)
        if setting.quotas is not None and not (inspect.isclass(thing) and ":" in name):
            raise PolicyError(
                f"'{name}' has no quotas: it decides on all waiting jobs by itself; take ORDER+PLACEMENT, or a class of"
                " your own that heeds setting.quotas"
            )
        if options:
            if not (inspect.isclass(thing) and isinstance(thing, Configurable)):
                raise PolicyError(f"'{name}': {bare} takes no settings")
            thing = thing.with_options(setting, options)
        policy: Policy = _made(thing, setting, name, "a policy", _POLICY)
        return policy
    if parts and (scheme or len(parts) == 2) and _decides_on_many(options_of(parts[-1])[0]):
        return _looking_in_order(scheme, parts[0] if len(parts) == 2 else "fifo", parts[-1], setting, name)
    if len(parts) == 1:
        parts = [parts[0], "first-fit"] if parts[0] in ORDERS else ["fifo", parts[0]]
    order_part, place_part = parts or ("fifo", "first-fit")
    order, place = _order(order_part, setting, name), _place(place_part, setting, name)
    policy = _composed(scheme, order, place, setting, name)
    return Giving(policy, place) if isinstance(place, GivesMore) else policy


def _decides_on_many(name: str) -> bool:
    """Whether this is a policy by itself; other packages are asked only for names that no registry here has."""
    return name in POLICIES or (not (name in ORDERS or name in PLACEMENTS) and name in policies_found())


def _looking_in_order(scheme: str, order_part: str, rest: str, setting: Setting, name: str) -> Policy:
    """A policy that decides on many jobs at once, and looks at them in an order."""
    from berth.policies.schemes.preempt import ByPriority, Ranks

    policy = make_policy(rest, setting)
    if scheme == "preempt" and isinstance(policy, KeepsGpus):
        preempting: Policy = _load(_PREEMPTING)(ByPriority(_order(order_part, setting, name)), policy)
        return preempting
    if scheme or not isinstance(policy, Orderable):
        raise PolicyError(
            f"no policy '{name}': {options_of(rest)[0]} decides by itself"
            f" {'what is stopped' if scheme else 'which job is next'};"
            " an order may stand before policies that share GPUs, and a scheme before ORDER+PLACEMENT"
        )
    order = _order(order_part, setting, name)
    if isinstance(order, Ranks):
        raise PolicyError(f"no policy '{name}': the order evicts by itself; take one that does not")
    policy.queue_order = order
    return policy


def _composed(scheme: str, order: Order, place: Place, setting: Setting, name: str) -> Policy:
    from berth.policies.schemes.preempt import Preemptive, Ranks

    if setting.quotas is not None:
        if scheme in ("easy", "conservative"):
            raise PolicyError(
                f"'{name}' has no quotas: {scheme} reserves nodes by when they are free, and a job beyond its quota"
                f" waits for that quota instead; take the policy without it: '{name.replace(f'{scheme}+', '', 1)}'"
            )
        if scheme or isinstance(order, Ranks):
            raise PolicyError(
                f"'{name}' has no quotas: quotas say who may hold which GPUs, and an order that evicts says it again;"
                " take one that does not evict"
            )
        from berth.policies.schemes.quotas import Quotas, check_names

        check_names(setting.quotas, setting.knowledge.usual_requests())
        return Quotas(order, place, setting.quotas, setting.borrow, setting.reclaim)
    if isinstance(order, Ranks) and scheme != "preempt":
        if scheme:
            raise PolicyError(
                f"no policy '{name}': the order evicts by itself, so that no reservation would hold; it goes with"
                " preempt"
            )
        return Preemptive(order, place)
    if not scheme:
        return Ordered(order, place)
    made = _load(SCHEMES[scheme])
    if scheme == "preempt":
        return Preemptive(made(order), place)
    policy: Policy = made(order, place, setting.knowledge, setting.speeds)
    return policy


_POLICY = ("queue", "cluster", "now_ms")
_PREEMPTING = "berth.policies.colocation.preempting:PreemptiveSharing"


def _order(part: str, setting: Setting, name: str) -> Order:
    if part in ORDERS or ":" in part:
        thing = _load(ORDERS.get(part, part))
        if inspect.isclass(thing) or not _takes(thing, _POLICY):
            thing = _made(thing, setting, name, "an order", ("queue",), _POLICY)
        if _takes(thing, _POLICY):
            order: Order = thing
            return order
        return OfQueue(thing)
    raise _unknown("order", part, ORDERS, name)


def _place(part: str, setting: Setting, name: str) -> Place:
    if part in PLACEMENTS or ":" in part:
        place: Place = _made(
            _load(PLACEMENTS.get(part, part)), setting, name, "a placement", ("job", "cluster")
        )
        return place
    raise _unknown("placement" if "+" in name else "policy", part, PLACEMENTS, name)


def _unknown(kind: str, part: str, choices: dict[str, str], name: str) -> PolicyError:
    known = names() if kind == "policy" else choices
    near = difflib.get_close_matches(part, known, n=1, cutoff=0.5)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    where = "" if part == name else f" in '{name}'"
    return PolicyError(
        f"no {kind} '{part}'{where}{hint}; there are {', '.join(known)}, and your own as my.module:thing"
    )


def _load(path: str) -> Any:
    """What an import string such as `my.module:thing` names."""
    return named_thing(path, "policy", PolicyError)


def _made(thing: Any, setting: Setting, name: str, what: str, *forms: tuple[str, ...]) -> Any:
    """A class made with the setting, or a function as it is; refused where it takes none of these parameters."""
    if inspect.isclass(thing):
        try:
            inspect.signature(thing).bind(setting)
        except TypeError as error:
            raise PolicyError(f"'{name}': {thing.__name__} must be made with one Setting: {error}") from error
        made: Any = thing
        thing = made(setting)
    called = " or ".join(f"({', '.join(parameters)})" for parameters in forms)
    if not callable(thing):
        raise PolicyError(f"'{name}': {what} is called with {called}; {thing!r} cannot be called")
    if not any(_takes(thing, parameters) for parameters in forms):
        try:
            inspect.signature(thing).bind(*forms[-1])
        except TypeError as error:
            raise PolicyError(f"'{name}': {what} is called with {called}: {error}") from error
    return thing


def _takes(thing: Any, parameters: tuple[str, ...]) -> bool:
    """Whether a function can be called with these arguments."""
    try:
        inspect.signature(thing).bind(*parameters)
    except (TypeError, ValueError):
        return False
    return True
