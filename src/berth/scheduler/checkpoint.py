"""The content of every object that some objects lead to, kept so that it can be put back in place.

It works as `copy.deepcopy` does, except that objects keep their identity: whoever holds a list, an array or a run
still holds it after `restore`, with its old content. So caches stay valid, whichever class they belong to, and a
policy that somebody else wrote needs no method of its own for it.

Measured on 550 nodes with 500 running and 2,000 waiting jobs: `bench/trials.py`.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from fractions import Fraction
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from berth.model import Event, GpuModel, GpuSlot, Job, Node, Placement, Profile, Record, Share

__all__ = ["Checkpoint"]

_VALUES: frozenset[type] = frozenset(
    {int, str, float, bool, bytes, complex, type(None), Fraction, range, slice, type, BuiltinFunctionType, ModuleType}
    | {Job, Node, GpuSlot, GpuModel, Share, Placement, Event, Record, Profile}
)  # fmt: skip
"""What has no content that changes, and leads to nothing that has."""
_OPAQUE = frozenset({*sys.stdlib_module_names, "numpy", "numba", "jax", "jaxlib", "rich"}) - {"collections"}
"""Packages whose objects are left as they are, unless a case below knows how to put them back."""

_Restore = Callable[[], object]


class Checkpoint:
    """The content of all that the roots lead to, as it is when this is made."""

    def __init__(self, roots: Iterable[object], *, without: Iterable[object] = ()) -> None:
        """Nothing is kept of the objects in `without`, nor of what they alone lead to."""
        self._restores: list[_Restore] = []
        self._seen: dict[int, object] = {id(each): each for each in without}  # keeps them, and so their ids, alive
        self._slots: dict[type, list[MemberDescriptorType]] = {}
        pending = [*roots]
        seen = self._seen
        while pending:
            each = pending.pop()
            if type(each) not in _VALUES and id(each) not in seen:
                seen[id(each)] = each
                pending += [next_one for next_one in self._keep(each) if type(next_one) not in _VALUES]

    def restore(self) -> None:
        """Put everything back as it was."""
        for restore in self._restores:
            restore()

    def _keep(self, each: Any) -> Iterable[object]:
        """Note how to put an object back; returns what it leads to."""
        kind = type(each)
        if kind is tuple:
            return tuple(each)
        found: list[object] = []
        if isinstance(each, list | deque | set):
            found += self._keep_items(each)
        elif isinstance(each, dict):
            found += self._keep_mapping(each)
        elif isinstance(each, tuple | frozenset):
            found += each
        elif isinstance(each, np.ndarray):
            return self._keep_array(each)
        elif isinstance(each, random.Random):
            self._restores.append(partial(each.setstate, each.getstate()))
            return ()
        elif isinstance(each, np.random.Generator):
            self._restores.append(partial(setattr, each.bit_generator, "state", each.bit_generator.state))
            return ()
        elif isinstance(each, MethodType):
            return (each.__self__,)
        elif isinstance(each, partial):
            return (each.func, *each.args, *each.keywords.values())
        elif isinstance(each, FunctionType):
            return each.__closure__ or ()
        elif isinstance(each, CellType):
            return self._keep_cell(each)
        elif isinstance(each, type | Enum) or kind.__module__.partition(".")[0] in _OPAQUE:
            return ()
        found += self._keep_attributes(each)
        return found

    def _keep_items(self, each: Any) -> Iterable[object]:
        items = each.copy()

        def restore() -> None:
            each.clear()
            (each.update if isinstance(each, set) else each.extend)(items)

        self._restores.append(restore)
        return items

    def _keep_mapping(self, each: dict[Any, Any]) -> Iterable[object]:
        items = list(each.items())

        def restore() -> None:
            each.clear()
            each.update(items)

        self._restores.append(restore)
        return [part for item in items for part in item]

    def _keep_array(self, each: Any) -> Iterable[object]:
        if isinstance(each.base, np.ndarray):
            return (each.base,)
        if each.flags.writeable:
            self._restores.append(partial(np.copyto, each, each.copy()))
        return ()

    def _keep_cell(self, each: CellType) -> Iterable[object]:
        try:
            content = each.cell_contents
        except ValueError:  # it is empty
            return ()
        self._restores.append(partial(setattr, each, "cell_contents", content))
        return (content,)

    def _keep_attributes(self, each: object) -> Iterable[object]:
        found: list[object] = []
        attributes = getattr(each, "__dict__", None)
        if isinstance(attributes, dict):
            kept = attributes.copy()
            found += kept.values()

            def restore_attributes() -> None:
                attributes.clear()
                attributes.update(kept)

            self._restores.append(restore_attributes)
        if slots := self._slots_of(type(each)):
            values = [(slot, slot.__get__(each)) for slot in slots if _is_set(slot, each)]
            found += [value for _, value in values]

            def restore_slots() -> None:
                for slot, value in values:
                    slot.__set__(each, value)

            self._restores.append(restore_slots)
        return found

    def _slots_of(self, kind: type) -> list[MemberDescriptorType]:
        """The descriptors of `__slots__` of a class and of those above it."""
        known = self._slots.get(kind)
        if known is None:
            known = self._slots[kind] = [
                slot
                for one in kind.__mro__
                for slot in vars(one).values()
                if isinstance(slot, MemberDescriptorType) and slot.__name__ != "__weakref__"
            ]
        return known


def _is_set(slot: MemberDescriptorType, each: object) -> bool:
    try:
        slot.__get__(each)
    except AttributeError:
        return False
    return True
