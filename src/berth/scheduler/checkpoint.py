"""The content of every object that some objects lead to, kept so that it can be put back in place.

It works as `copy.deepcopy` does, except that objects keep their identity: whoever holds a list, an array or a run
still holds it after `restore`, with its old content. So caches stay valid, whichever class they belong to, and a
policy that somebody else wrote needs no method of its own for it.

Not put back are: how far a generator or another iterator has come (`zip`, an open file; an `itertools.count` is
refused, as it is the one that policies keep), global variables and attributes of classes, and the content of objects
of the standard library, Numba, JAX and Rich other than lists, deques, sets, dicts, NumPy's arrays and generators of
random numbers.

To make one and to restore it takes 0.6 ms with 8 running and 20 waiting jobs, 21 ms with 560 and 2,000, and 0.25 s with
4,400 and 20,000 (`bench/trials.py`; who feels it is a driver that begins several trials in one look).
"""

from __future__ import annotations

import itertools
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from fractions import Fraction
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

from berth.cluster import Running
from berth.errors import SchedulerError
from berth.model import Event, GpuModel, GpuSlot, Job, Node, Placement, Profile, Record, Share

_VALUES: frozenset[type] = frozenset(
    {
        int,
        str,
        float,
        bool,
        bytes,
        complex,
        type(None),
        Fraction,
        range,
        slice,
        type,
        BuiltinFunctionType,
        ModuleType,
    }
    | {Job, Node, GpuSlot, GpuModel, Share, Placement, Event, Record, Profile}
)
"""What has no content that changes, and leads to nothing that has."""
_OPAQUE = frozenset({*sys.stdlib_module_names, "numpy", "numba", "jax", "jaxlib", "rich"}) - {"collections"}
"""Packages whose objects are left as they are, unless a case below knows how to put them back."""

_Saved = tuple[Callable[[Any, Any], object], Any, Any]
"""How to put an object's content back, the object, and the content."""
_UNSET: Any = type
"""Stands for what a slot that was never set has."""
_Led = Iterable[object]
"""What an object leads to."""


class Checkpoint:
    """The content of all that the roots lead to, as it is when this is made."""

    def __init__(self, roots: Iterable[object], *, without: Iterable[object] = ()) -> None:
        """Nothing is kept of the objects in `without`, nor of what they alone lead to."""
        self._saved: list[_Saved] = []
        self._seen: dict[int, object] = {
            id(each): each for each in without
        }  # keeps them, and so their ids, alive
        self._slots: dict[type, tuple[str, ...]] = {}
        seen, values = self._seen, _VALUES
        pending = [*roots]
        while pending:
            each = pending.pop()
            kind = type(each)
            if kind is tuple:  # most objects are tuples of values
                pending += [other for other in cast(tuple[object, ...], each) if type(other) not in values]
            elif id(each) not in seen:
                seen[id(each)] = each
                led = _KEEPERS.get(kind, Checkpoint._keep)(self, each)
                pending += [other for other in led if type(other) not in values]

    def restore(self) -> None:
        """Put everything back as it was."""
        for put_back, each, content in self._saved:
            put_back(each, content)

    def _keep(self, each: Any) -> _Led:
        """Note the content of an object of no kind that is known by its exact type; returns what it leads to."""
        kind = type(each)
        led: list[object] = []
        if isinstance(each, list | deque):
            led += self._keep_line(each)
        elif isinstance(each, set):
            led += self._keep_set(each)
        elif isinstance(each, OrderedDict):
            led += self._keep_ordered(each)
        elif isinstance(each, dict):
            led += self._keep_mapping(each)
        elif isinstance(each, tuple | frozenset):
            led += each
        elif isinstance(each, np.ndarray):
            return self._keep_array(each)
        elif isinstance(each, random.Random):
            self._saved.append((random.Random.setstate, each, each.getstate()))
            return ()
        elif isinstance(each, np.random.Generator):
            self._saved.append((_set_generator, each, each.bit_generator.state))
            return ()
        elif isinstance(each, type | Enum) or kind.__module__.partition(".")[0] in _OPAQUE:
            return ()
        led += self._keep_attributes(each)
        return led

    def _keep_line(self, each: list[Any] | deque[Any]) -> _Led:
        content = each.copy()
        self._saved.append((_set_line, each, content))
        return content

    def _keep_set(self, each: set[Any]) -> _Led:
        content = each.copy()
        self._saved.append((_set_set, each, content))
        return content

    def _keep_mapping(self, each: dict[Any, Any]) -> _Led:
        keys, content = list(each), list(dict.values(each))
        self._saved.append((_set_mapping, each, (keys, content)))
        return keys + content

    def _keep_ordered(self, each: OrderedDict[Any, Any]) -> _Led:
        items = list(OrderedDict.items(each))
        self._saved.append((_set_ordered, each, items))
        return [one for item in items for one in item]

    def _keep_array(self, each: Any) -> _Led:
        if isinstance(each.base, np.ndarray):
            return (each.base,)
        if each.flags.writeable:
            self._saved.append((np.copyto, each, each.copy()))
        return ()

    def _keep_cell(self, each: CellType) -> _Led:
        try:
            content = each.cell_contents
        except ValueError:  # it is empty
            return ()
        self._saved.append((_set_cell, each, content))
        return (content,)

    def _keep_attributes(self, each: object) -> _Led:
        led: list[object] = []
        attributes = getattr(each, "__dict__", None)
        if isinstance(attributes, dict):
            led += self._keep_mapping(attributes)
        kind = type(each)
        names = self._slots.get(kind)
        if names is None:
            names = self._slots[kind] = _slots_of(kind)
        if names:
            content = [getattr(each, name, _UNSET) for name in names]
            led += content
            self._saved.append((_set_slots, each, (names, content)))
        return led


def _refuse_count(_: Checkpoint, each: object) -> _Led:
    raise SchedulerError(
        f"a trial cannot put back how far {each!r} has come, which the policy keeps; count with a number of your own"
    )


_KEEPERS: dict[type, Callable[[Checkpoint, Any], _Led]] = {
    list: Checkpoint._keep_line,
    dict: Checkpoint._keep_mapping,
    set: Checkpoint._keep_set,
    np.ndarray: Checkpoint._keep_array,
    Running: Checkpoint._keep_attributes,
    CellType: Checkpoint._keep_cell,
    MethodType: lambda _, each: (each.__self__,),
    FunctionType: lambda _, each: each.__closure__ or (),
    itertools.count: _refuse_count,
    partial: lambda _, each: (each.func, *each.args, *each.keywords.values()),
}
"""By the exact type of an object, which is found faster than the class that it derives from."""


def _slots_of(kind: type) -> tuple[str, ...]:
    """The names of `__slots__` of a class and of those above it."""
    descriptors = [slot for one in kind.__mro__ for slot in vars(one).values()]
    return tuple(slot.__name__ for slot in descriptors if isinstance(slot, MemberDescriptorType))


def _set_line(each: list[Any] | deque[Any], content: Iterable[Any]) -> None:
    each.clear()
    each.extend(content)


def _set_set(each: set[Any], content: set[Any]) -> None:
    each.clear()
    each.update(content)


def _set_mapping(each: dict[Any, Any], content: tuple[list[Any], list[Any]]) -> None:
    dict.clear(each)
    dict.update(each, zip(*content, strict=True))  # that of a Counter counts


def _set_ordered(each: OrderedDict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    OrderedDict.clear(each)  # dict.clear would leave the links of the order
    for key, value in items:
        OrderedDict.__setitem__(each, key, value)  # a class below it may count or discard


def _set_cell(each: CellType, content: object) -> None:
    each.cell_contents = content


def _set_slots(each: object, content: tuple[tuple[str, ...], list[object]]) -> None:
    for name, value in zip(*content, strict=True):
        if value is not _UNSET:
            object.__setattr__(each, name, value)  # of frozen dataclasses too
        else:
            with suppress(AttributeError):  # it is still unset
                object.__delattr__(each, name)


def _set_generator(each: np.random.Generator, content: Any) -> None:
    each.bit_generator.state = content
