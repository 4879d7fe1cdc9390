"""Bits for the names of GPU models and of labels, by which kernels tell nodes apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from berth.errors import ClusterError

__all__ = ["NO_SUCH", "bits_of", "with_new"]

MOST = 62
"""How many names have a bit of their own in a signed number of 64."""

NO_SUCH = 1 << 62
"""The bit of a node without a GPU model, and of labels that no node carries."""


def bits_of(names: Iterable[str], known: tuple[str, ...]) -> int:
    """The bits of these names; those that are not known are left out."""
    return sum(1 << known.index(name) for name in set(names) if name in known)


def with_new(
    known: tuple[str, ...], come: set[str], there: Callable[[], set[str]], kind: str
) -> tuple[str, ...]:
    """The known names and those that come, each in the place of its bit.

    A name keeps its place while there is room. If there is none, all get new places, and only those that come or that
    `there` tells. ClusterError for more names than there are bits.
    """
    new = sorted(come.difference(known))
    if not new:
        return known
    if len(known) + len(new) <= MOST:
        return (*known, *new)
    left = sorted(there() | come)
    if len(left) > MOST:
        raise ClusterError(
            f"the nodes have {len(left)} different {kind}; a cluster can tell {MOST} apart: give alike nodes the same"
            f" ones, leave out {kind} that no job asks for, or make several clusters of the nodes"
        )
    return tuple(left)
