"""Kinds of nodes: those of one GPU model, with the same labels and kept for the same users, are alike to every request.

Kernels ask one thing of a node: whether the kind that it is of is among those that a request may take. However many
labels and GPU models there are, the answer is one bit of one word of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from berth.model import Node

WORD = 62
"""Bits of a word that are used: a signed number of 64 stays positive."""

_Kind = tuple[str | None, frozenset[str], frozenset[str]]


def numbers_as_words(bits: int, words: int) -> list[int]:
    """A number of any size in words of `WORD` bits, the lowest first."""
    return [bits >> (WORD * word) & ((1 << WORD) - 1) for word in range(words)]


class NodeKinds:
    """The kinds of the nodes that have been seen, numbered from 0 in the order in which they came."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._numbers: dict[_Kind, int] = {}
        self._of_model: dict[str, int] = {}  # name -> a bit for each kind of that GPU model
        self._of_label: dict[str, int] = {}  # name -> a bit for each kind that carries it
        self._of_user: dict[str, int] = {}  # name -> a bit for each kind that is kept for this user
        self._anybody = 0  # a bit for each kind that is not reserved
        self.has_labels = False
        """Whether any node that was seen carries a label."""
        for node in nodes:
            self.number(node)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def words(self) -> int:
        """How many words the bits of all kinds take; at least 1."""
        return max(1, -(-len(self._numbers) // WORD))

    def number(self, node: Node) -> int:
        """The number of the node's kind; a new one if none was like it."""
        model_name = node.gpu_model.name if node.gpu_model else None
        kind = model_name, frozenset(node.labels), frozenset(node.reserved_for)
        known = self._numbers.get(kind)
        if known is None:
            known = self._numbers[kind] = len(self._numbers)
            model, labels, users = kind
            if model is not None:
                self._of_model[model] = self._of_model.get(model, 0) | 1 << known
            self.has_labels = self.has_labels or bool(labels)
            for label in labels:
                self._of_label[label] = self._of_label.get(label, 0) | 1 << known
            for user in users:
                self._of_user[user] = self._of_user.get(user, 0) | 1 << known
            if not users:
                self._anybody |= 1 << known
        return known

    def with_models(self, models: Sequence[str]) -> int:
        """A bit for each kind of one of these GPU models; of every kind for no names."""
        if not models:
            return (1 << len(self._numbers)) - 1
        bits = 0
        for name in models:
            bits |= self._of_model.get(name, 0)
        return bits

    def with_labels(self, labels: Sequence[str]) -> int:
        """A bit for each kind that carries all these labels."""
        bits = (1 << len(self._numbers)) - 1
        for label in labels:
            bits &= self._of_label.get(label, 0)
        return bits

    def open_to(self, user: str) -> int:
        """A bit for each kind on which jobs of this user may start now."""
        return self._anybody | self._of_user.get(user, 0)
