"""How a solution is built, changed and bettered: the genetic operators of `genetic`, compiled.

A step takes some instances out, puts them and those that wait back in another way, and keeps what is no worse. The
instances of a gang go together: all of them are placed, each on a node of its own, or none.
Letters as in `packing_kernels`.
"""

from __future__ import annotations

from berth.arrays import IntArray, compiled, released
from berth.policies.genetic.packing_kernels import (
    Packing,
    Solution,
    add,
    below,
    best_place,
    consider,
    insert,
    is_apart,
    remove,
    total,
    uniform,
)

BY_COST, BY_FIRST, BY_ROOM = range(3)
"""How `build` chooses a node: the least cost, the first that fits, the least GPU left."""

TRIED = 48
"""Waiting instances that are tried in one step."""

BLINK = 0.02
"""The probability that a step passes over the best node."""

EPSILON = 1e-9


@compiled
def place_by(p: Packing, s: Solution, first: int, i: int, how: int, blink: float) -> int:
    """The node for an instance of the gang that begins with `first`, by one of the heuristics; −1: it fits nowhere."""
    kind = p.type_of[i]
    if how == BY_COST:
        return best_place(p, s, first, i, blink)
    best = -1
    least = 1 << 60
    for node in range(s.version.shape[0]):
        if s.seen[kind, node] != s.version[node]:
            consider(p, s, kind, node)
        if s.cost[kind, node] >= 1e299 or not is_apart(s, first, i, node):
            continue
        if how == BY_FIRST:
            return node
        room = 0
        for index in range(s.milli.shape[1]):
            room += max(0, s.milli[node, index])
        if room < least:
            least = room
            best = node
    return best


@compiled
def settle(p: Packing, s: Solution, i: int, how: int, blink: float) -> None:
    """Put a job, told by its first instance, where the heuristic says, if there is room for all of it."""
    for part in range(i, i + p.parts[i]):
        node = place_by(p, s, i, part, how, blink)
        if node < 0:
            for other in range(i, part):
                remove(p, s, other)
            return
        insert(p, s, part, node)


@compiled
def settle_as(p: Packing, s: Solution, i: int, wish: IntArray) -> None:
    """Put a job, told by its first instance, on the nodes of `wish` (I,), if those are some and have room."""
    for part in range(i, i + p.parts[i]):
        node = wish[part]
        fits = node >= 0 and is_apart(s, i, part, node)
        if fits:
            consider(p, s, p.type_of[part], node)
            fits = s.cost[p.type_of[part], node] < 1e299
        if not fits:
            for other in range(i, part):
                remove(p, s, other)
            return
        insert(p, s, part, node)


@released
def build(p: Packing, s: Solution, order: IntArray, wish: IntArray, how: int) -> float:
    """Build a solution on one with nothing placed, and say what it is worth.

    Instances come in `order` (I,). Each goes to the node of `wish` (I,), where there is one and it has room, else
    where the heuristic `how` says.
    """
    for at in range(order.shape[0]):
        if s.node[order[at]] < 0:
            settle_as(p, s, order[at], wish)
    for at in range(order.shape[0]):
        if s.node[order[at]] < 0:
            settle(p, s, order[at], how, 0.0)
    return total(p, s)


@compiled
def take_out(p: Packing, s: Solution, i: int, count: int) -> int:
    """Take an instance out, with its gang, and remember where it was; how many are out now."""
    while p.parts[i] == 0:
        i -= 1
    for part in range(i, i + p.parts[i]):
        s.taken[count] = part
        s.old_node[count] = s.node[part]
        s.old_devices[count] = s.devices[part]
        s.versions[count] = s.version[s.node[part]]
        remove(p, s, part)
        count += 1
    return count


@compiled
def take_out_all_of(p: Packing, s: Solution, node: int, count: int, most: int) -> int:
    """Take out what the batch has on a node; how many are out now."""
    for i in range(s.node.shape[0]):
        if s.node[i] == node and count < most:
            count = take_out(p, s, i, count)
    return count


@compiled
def ruin(p: Packing, s: Solution, most: int) -> int:
    """Take instances out: at random, all on some nodes, or what stands where one that waits could be; how many."""
    length = s.node.shape[0]
    count = 0
    chosen = below(s.random, 3)
    if chosen == 0:
        for _ in range(1 + below(s.random, most)):
            i = below(s.random, length)
            if s.node[i] >= 0 and count < most:
                count = take_out(p, s, i, count)
        return count
    for _ in range(1 + below(s.random, 3)):
        i = below(s.random, length)
        node = s.node[i]
        if chosen == 2:  # a node that the instance could go to, if it were emptied of the batch
            fits = p.fit[p.type_of[i]]
            begin = below(s.random, fits.shape[0])
            for step in range(fits.shape[0]):
                at = begin + step
                node = at if at < fits.shape[0] else at - fits.shape[0]
                if fits[node]:
                    break
            if s.node[i] >= 0 and count < most:
                count = take_out(p, s, i, count)
        if node >= 0:
            count = take_out_all_of(p, s, node, count, most)
    return count


@compiled
def recreate(p: Packing, s: Solution, count: int) -> int:
    """Put back what was taken out, and what waits: the largest first, or in any order; how many were tried.

    `order` (I,) holds those tried, the ones taken out first among them.
    """
    tried = 0
    length = s.node.shape[0]
    for at in range(count):
        s.order[tried] = s.taken[at]
        tried += 1
    begin = below(s.random, length)
    waiting = 0
    for step in range(length):
        i = begin + step
        i = i if i < length else i - length
        if s.node[i] >= 0 or p.parts[i] == 0:
            continue
        out = False
        for at in range(count):
            out = out or s.taken[at] == i
        if out:
            continue
        for part in range(i, i + p.parts[i]):
            s.order[tried] = part
            tried += 1
        waiting += 1
        if waiting == TRIED:
            break
    noise = 0.0
    chosen = below(s.random, 4)
    if chosen == 1:
        noise = 0.5
    elif chosen == 2:
        noise = 100.0
    for at in range(tried):
        size = p.size[s.order[at]]
        s.key[at] = size * (1.0 + noise * (uniform(s.random) - 0.5))
    for at in range(1, tried):  # the largest key first
        i = s.order[at]
        key = s.key[at]
        place = at
        while place > 0 and s.key[place - 1] < key:
            s.order[place] = s.order[place - 1]
            s.key[place] = s.key[place - 1]
            place -= 1
        s.order[place] = i
        s.key[place] = key
    for at in range(tried):
        settle(p, s, s.order[at], BY_COST, BLINK)
    return tried


@compiled
def undo(p: Packing, s: Solution, count: int, tried: int) -> None:
    """Put everything back where it was before the step."""
    for at in range(tried):
        i = s.order[at]
        if s.node[i] >= 0:
            remove(p, s, i)
    for at in range(count):
        i = s.taken[at]
        add(p, s, i, s.old_node[at], s.old_devices[at])
    # The oldest version of each node is the one from before the step: what was worked out for it holds again.
    for at in range(count - 1, -1, -1):
        s.version[s.old_node[at]] = s.versions[at]


@compiled
def cross(p: Packing, s: Solution, other: IntArray, most: int) -> int:
    """Take over a stretch of genes from another solution where there is room; how many were taken out."""
    length = s.node.shape[0]
    begin = below(s.random, length)
    count = 0
    for step in range(length):
        i = begin + step
        i = i if i < length else i - length
        if s.node[i] >= 0 and s.node[i] != other[i]:
            count = take_out(p, s, i, count)
            if count >= most:
                break
    for at in range(count):
        settle_as(p, s, s.taken[at], other)
    return count


@released
def improve(
    p: Packing,
    s: Solution,
    value: float,
    steps: int,
    most: int,  # instances that are taken out in a step
    other: IntArray,  # (I,): the genes of another solution, to cross with
    crossing: float,  # the probability of that in a step
) -> float:
    """Take `steps` steps, each kept if the solution is worth no less after it; returns its worth then."""
    if s.node.shape[0] == 0:
        return value
    for _ in range(steps):
        if uniform(s.random) < crossing:
            count = cross(p, s, other, most)
            tried = count
            for at in range(count):
                s.order[at] = s.taken[at]
                if s.node[s.taken[at]] < 0:
                    settle(p, s, s.taken[at], BY_COST, 0.0)
        else:
            count = ruin(p, s, most)
            tried = recreate(p, s, count)
        after = total(p, s)
        if after < value - EPSILON:
            undo(p, s, count, tried)
        else:
            value = after
    return value
