"""Where the pods lie that topology spread constraints count, and which nodes these leave for one more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from berth.live.kubernetes.entries import Entry, State
from berth.live.kubernetes.selectors import meets
from berth.live.kubernetes.spreads import Domain, Named, SpreadRule

_ON_A_NODE = (State.PLACED, State.BOUND, State.FOREIGN)


class Spreads:
    """How many of the pods that rules name are on each node; pods that are told to go are not counted."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        """`entries` are the pods that the board knows, by uid."""
        self._entries = entries
        self._seats: dict[Named, dict[str, set[str]]] = {}  # -> node -> uids

    def keep(self, rules: Iterable[SpreadRule]) -> None:
        """Count for these rules and no others."""
        wanted = {rule.named for rule in rules}
        self._seats = {named: seats for named, seats in self._seats.items() if named in wanted}

    def seat(self, entry: Entry) -> bool:
        """A pod is on a node, or its labels have changed; returns whether a count has."""
        changed = False
        for named, seats in self._seats.items():
            if named[0] == entry.namespace:
                there = seats.setdefault(entry.node, set())
                before = len(there)
                if _counts(entry, named):
                    there.add(entry.uid)
                else:
                    there.discard(entry.uid)
                changed = changed or len(there) != before
        return changed

    def unseat(self, entry: Entry) -> bool:
        """A pod leaves its node; returns whether a count has changed."""
        changed = False
        for named, seats in self._seats.items():
            if named[0] == entry.namespace and entry.uid in seats.get(entry.node, ()):
                seats[entry.node].discard(entry.uid)
                changed = True
        return changed

    def node_gone(self, node: str) -> None:
        """A node is gone, and all on it."""
        for seats in self._seats.values():
            seats.pop(node, None)

    def uneven(self, rules: Iterable[SpreadRule], domains: Iterable[Domain]) -> set[str]:
        """The nodes on which one more pod would break a rule."""
        domains, rules = list(domains), tuple(rules)
        keys = {rule.key for rule in rules}
        complete = [each for each in domains if keys <= each.labels.keys()]
        found = {each.node for each in domains} - {each.node for each in complete}
        for rule in rules:
            seats = self._of(rule.named)
            counts: dict[str, int] = {}
            for each in complete:
                if (each.wanted or not rule.heeds_affinity) and (each.tolerated or not rule.heeds_taints):
                    value = each.labels[rule.key]
                    counts[value] = counts.get(value, 0) + len(seats.get(each.node, ()))
            least = min(counts.values(), default=0) if len(counts) >= rule.min_domains else 0
            most = least + rule.max_skew - rule.itself
            found |= {each.node for each in complete if counts.get(each.labels[rule.key], 0) > most}
        return found

    def _of(self, named: Named) -> dict[str, set[str]]:
        seats = self._seats.get(named)
        if seats is None:
            seats = self._seats[named] = {}
            for entry in self._entries.values():
                if entry.state in _ON_A_NODE and _counts(entry, named):
                    seats.setdefault(entry.node, set()).add(entry.uid)
        return seats


def _counts(entry: Entry, named: Named) -> bool:
    namespace, requirements = named
    return (
        requirements is not None
        and entry.namespace == namespace
        and not entry.ending
        and meets(entry.labels, requirements)
    )
