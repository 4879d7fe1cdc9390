"""Topology spread constraints: how evenly the pods that a selector names are to lie over zones, nodes or other domains.

Those with `DoNotSchedule` are kept, for the pods that berth places, as Kubernetes defines them: the domain of a node
may have at most `maxSkew` such pods more than the domain that has the fewest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from berth.errors import AskError
from berth.live.kubernetes.objects import Expression, Pod, Spread
from berth.live.kubernetes.selectors import Requirement, meets, requirement_of

MOST_RULES = 8
"""Rules of one pod."""
_OF_LABELS = ("In", "NotIn", "Exists", "DoesNotExist")
Named = tuple[str, tuple[Requirement, ...] | None]
"""Which pods a rule counts: those of a namespace that meet the requirements; None: no pod."""


@dataclass(frozen=True, slots=True)
class SpreadRule:
    """One rule of a pod."""

    key: str
    """The label of nodes whose values are the domains."""
    max_skew: int
    named: Named
    itself: bool
    """Whether the pod is one of those that it counts."""
    min_domains: int = 1
    """With fewer domains the least is taken to be none."""
    heeds_affinity: bool = True
    """Whether nodes that the pod's selector and affinity exclude are left out of the count."""
    heeds_taints: bool = False
    """Whether nodes with taints that the pod does not tolerate are left out of the count."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A node as the rules see it."""

    node: str
    labels: Mapping[str, str]
    wanted: bool
    """Whether the pod's selector and affinity let it run there."""
    tolerated: bool
    """Whether it tolerates the taints."""


def spread_rules(pod: Pod) -> tuple[SpreadRule, ...]:
    """The rules of a pod that must be kept. Raises AskError for one that makes no sense."""
    written = [
        each for each in pod.spec.topology_spread_constraints if each.when_unsatisfiable == "DoNotSchedule"
    ]
    if len(written) > MOST_RULES:
        raise AskError(f"the pod has {len(written)} topologySpreadConstraints; expected at most {MOST_RULES}")
    return tuple(_rule(each, pod) for each in written)


def _rule(spread: Spread, pod: Pod) -> SpreadRule:
    for what, said in (
        ("nodeAffinityPolicy", spread.node_affinity_policy),
        ("nodeTaintsPolicy", spread.node_taints_policy),
    ):
        if said not in (None, "Honor", "Ignore"):
            raise AskError(f"topologySpreadConstraints: {what} is '{said[:40]}'; expected Honor or Ignore")
    if not spread.topology_key or spread.max_skew < 1 or (spread.min_domains or 1) < 1:
        raise AskError(
            "topologySpreadConstraints: expected a topologyKey, and a maxSkew and minDomains of at least 1"
        )
    labels, selector = pod.metadata.labels, spread.label_selector
    requirements = None
    if selector is not None:
        found: list[Requirement] = [(key, "In", (value,)) for key, value in selector.match_labels.items()]
        found += [_of_labels(each) for each in selector.match_expressions]
        found += [(key, "In", (labels[key],)) for key in spread.match_label_keys if key in labels]
        requirements = tuple(sorted(found))
    return SpreadRule(
        spread.topology_key,
        spread.max_skew,
        (pod.metadata.namespace, requirements),
        itself=requirements is not None and meets(labels, requirements),
        min_domains=spread.min_domains or 1,
        heeds_affinity=spread.node_affinity_policy != "Ignore",
        heeds_taints=spread.node_taints_policy == "Honor",
    )


def _of_labels(expression: Expression) -> Requirement:
    where = "the labelSelector of topologySpreadConstraints"
    if expression.operator not in _OF_LABELS:
        raise AskError(f"{where} has operator '{expression.operator[:40]}'; expected {', '.join(_OF_LABELS)}")
    return requirement_of(expression, where)
