"""The rows of a cluster: its nodes in arrays, one row a node, one column a GPU slot, and what is free on each.

Letters: N nodes, G slots of the largest node. Others see what is free and what there is by name (`free`, `capacity`,
`up`), and hand `block` on to kernels. Nodes may come, change and go; a row keeps its number as long as anything runs
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from berth.arrays import BoolArray, IntArray, numbers
from berth.cluster import kernels
from berth.cluster.amounts import Amounts, amount_of, amounts_of, card_mem_mib, shown
from berth.cluster.checks import check_nodes
from berth.cluster.debts import Debts
from berth.cluster.kinds import WORD, NodeKinds, numbers_as_words
from berth.cluster.node_changes import vanished_node
from berth.errors import ClusterError, SettingError, check_kind
from berth.model import NO_GPU, GpuSlot, Job, Node, Share


class NodeRows:
    """Nodes with their GPUs: what there is and what is free."""

    # More than thirty attributes of an object without slots are looked up in twice the time.
    __slots__ = (
        "_arrays",
        "_block",
        "_capacity",
        "_debts",
        "_gone",
        "_kinds",
        "_rows",
        "_slots_at",
        "_strangers",
        "_up",
        "_when_up",
        "block",
        "capacity",
        "free",
        "free_total_milli",
        "models",
        "node_models",
        "nodes",
        "rank",
        "up",
    )

    def __init__(self, nodes: Sequence[Node], rank: Sequence[int] | None) -> None:
        if isinstance(nodes, str):
            raise SettingError(f"a cluster takes nodes, such as berth.read_nodes({nodes!r}); not {nodes!r}")
        check_kind(nodes, Iterable, "a cluster takes nodes, each a berth.Node")
        self.nodes = tuple(nodes)
        """By their rows. A node that has vanished is here without GPUs, CPU and memory until another takes its row."""
        check_nodes(self.nodes)
        n = len(self.nodes)
        if rank is not None and sorted(rank) != list(range(n)):
            raise ClusterError(f"a rank must be a permutation of 0…{n - 1}, one number a node")
        self._kinds = NodeKinds(self.nodes)
        self.models: dict[str, int] = {}
        """Numbers of the GPU models that nodes have had, from 1 on; 0 is that of a node without."""
        self.free_total_milli = 1000 * sum(node.gpus for node in self.nodes)
        """GPU milli free on the whole cluster, lost nodes included: a job that asks for more cannot fit."""

        width = max(1, max(node.gpus for node in self.nodes))
        self._show(kernels.block_of(n, width), amounts_of(self.nodes, width))
        arrays = self._arrays
        for free, most in zip(arrays[:4], self.capacity, strict=True):
            free[:] = most
        arrays.rank[:] = np.arange(n) if rank is None else rank
        arrays.traits[:] = [self._traits(node, True) for node in self.nodes]
        self._up[:] = True
        self._rows = {node.name: row for row, node in enumerate(self.nodes)}
        self._gone: set[int] = set()  # rows of nodes that have vanished
        self._strangers: dict[GpuSlot, Share] = {}
        self._when_up: IntArray | None = None

    # What is there

    def free_on(self, slot: GpuSlot) -> Share:
        """What is free on a GPU; nothing where there is no such GPU."""
        node, index = slot
        rows, width = self.free.milli.shape
        if not (0 <= node < rows and 0 <= index < width):
            return Share(0, 0)
        return Share(max(0, int(self.free.milli[slot])), max(0, int(self.free.gpu_mem_mib[slot])))

    def with_model(self, job: Job) -> BoolArray:
        """(N,): whether each node is of a GPU model that the job may run on."""
        return self._of_kinds(self._kinds.with_models(job.models))

    def with_labels(self, job: Job) -> BoolArray:
        """(N,): whether each node carries all labels that the job asks for."""
        return self._of_kinds(self._kinds.with_labels(job.labels))

    def marks(self) -> IntArray:
        """(N,): the state that each node is in, to be handed to `changed_since`."""
        return self._arrays.version.copy()

    def changed_since(self, marks: IntArray) -> IntArray:
        """Numbers of the nodes that have changed since these marks were made, ascending; brings them up to date.

        The marks are of the same nodes: keep them in `memo`.
        """
        version = self._arrays.version
        changed = np.flatnonzero(version != marks)
        if len(changed):
            np.copyto(marks, version)
        return changed

    @property
    def has_labels(self) -> bool:
        """Whether any node carries a label, or one of those that were there did."""
        return self._kinds.has_labels

    @property
    def names(self) -> dict[str, int]:
        """The row of each node by its name; of nodes that are lost too, and of none that has vanished."""
        return {name: row for name, row in self._rows.items() if row not in self._gone}

    def row_of(self, name: str) -> int | None:
        """The row of the node of that name; None where there is none."""
        row = self._rows.get(name)
        return None if row is None or row in self._gone else row

    def strangers_on(self, slot: GpuSlot) -> Share:
        """What processes that are not jobs of this cluster use of a GPU."""
        return self._strangers.get(slot, Share(0, 0))

    @property
    def is_indebted(self) -> bool:
        """Whether anything is used beyond what there is."""
        return bool(self._debts.owed)

    def owed(self) -> Amounts:
        """What jobs and strangers use beyond what there is, after nodes shrank or strangers came; as new arrays."""
        return self._debts.amounts()

    # How nodes come and go

    def _show(self, block: IntArray, capacity: Amounts) -> None:
        """Work on these arrays, and show what others may see of them but not write to."""
        self._block = block
        self.block = block
        """All arrays in one, for kernels alone, which know what lies where. It is the only one that is not read-only:
        a call of a kernel takes 0.33 µs longer with a read-only array."""
        arrays = self._arrays = kernels.arrays_of(block)
        self.free = Amounts(*(shown(array) for array in arrays[:4]))
        """What is free on each node and GPU."""
        self._capacity = capacity
        self.capacity = Amounts(*(shown(array) for array in capacity))
        """What there is on each node and GPU, lost nodes included; 0 of all, and no GPU, where one has vanished."""
        self._debts = Debts(Amounts(*arrays[:4]), capacity)
        n = len(arrays.free_milli)
        self._up: BoolArray = np.zeros(n, dtype=np.bool_)
        self.up: BoolArray = self._up.view()
        """(N,): whether each node is there and not lost."""
        self.up.flags.writeable = False
        self.node_models = shown(arrays.traits[:, kernels.MODEL])
        """(N,): the number of each node's GPU model; `models` has those of names."""
        self.rank = shown(arrays.rank)
        """(N,): a permutation; the smaller wins a tie between equally good nodes."""
        self._slots_at = numbers(arrays.slots)

    def _make_room(self, rows: int, width: int) -> None:
        """Have at least this many rows, and GPU slots on each; existing rows stay in place."""
        n, g = self.free.milli.shape
        rows, width = max(rows, n), max(width, g)
        if (rows, width) == (n, g):
            return
        old, old_capacity, old_up, owed = self._arrays, self._capacity, self._up, self._debts.owed
        block = kernels.block_of(rows, width)
        block[2] = self._block[2]
        capacity = Amounts(
            *(np.zeros(rows, dtype=np.int64) for _ in range(2)),
            *(np.full((rows, width), -1, dtype=np.int64) for _ in range(2)),
        )
        self._show(block, capacity)
        for array in self._arrays[2:4]:
            array[:] = -1
        for before, array in (
            *zip(old, self._arrays, strict=True),
            *zip(old_capacity, capacity, strict=True),
        ):
            array[tuple(slice(size) for size in before.shape)] = before
        self._up[:n] = old_up
        self._arrays.rank[n:] = np.arange(n, rows)
        self._debts.owed.update(owed)

    def _rows_for(self, new: Sequence[Node]) -> list[int]:
        """A row for each new node: that which it had, else one that is empty, else one behind all others."""
        named = {self._rows[node.name] for node in new if node.name in self._rows}
        empty = [row for row in sorted(self._gone - named, reverse=True) if not self._arrays.jobs[row]]
        rows: list[int] = []
        behind = len(self.nodes)
        for node in new:
            row = self._rows.get(node.name)
            if row is None and empty:
                row = empty.pop()
            elif row is None:
                row, behind = behind, behind + 1
            rows.append(row)
        return rows

    def _take_over(
        self, added: Mapping[int, Node], changed: Mapping[int, Node], vanished: Sequence[int]
    ) -> None:
        """Let these nodes be in these rows, for which there is room, and none in those of the last."""
        by_row = [*self.nodes, *added.values()][: self.free.milli.shape[0]]
        for row in vanished:
            self._gone.add(row)
            by_row[row] = vanished_node(by_row[row])
            self._set_node(row, by_row[row], False)
        for row, node in added.items():
            if row < len(self.nodes):
                self._rows.pop(by_row[row].name)
                self._gone.discard(row)
            self._rows[node.name] = row
            by_row[row] = node
            self._set_node(row, node, True)
        for row, node in changed.items():
            by_row[row] = node
            self._set_node(row, node, bool(self._up[row]))
        self.nodes = tuple(by_row)
        self._when_up = None

    def _set_node(self, row: int, node: Node, up: bool) -> None:
        """Let this node be in the row; what runs there goes on."""
        arrays, capacity = self._arrays, self._capacity
        place = GpuSlot(row, NO_GPU)
        cpu, mem = self._debts.left(place)
        cpu -= int(capacity.cpu_milli[row])
        mem -= int(capacity.mem_mib[row])
        capacity.cpu_milli[row], capacity.mem_mib[row] = amount_of(node.cpu_milli), amount_of(node.mem_mib)
        self._let_be_left(place, cpu + amount_of(node.cpu_milli), mem + amount_of(node.mem_mib))
        card_mib = card_mem_mib(node)
        for index in range(self.free.milli.shape[1]):
            slot = GpuSlot(row, index)
            there = index < node.gpus
            has = (1000, card_mib) if there else (0, 0)
            had = int(capacity.milli[slot]), int(capacity.gpu_mem_mib[slot])
            if not there and had[0] < 0:
                continue
            strangers = Share(0, 0) if there else self._strangers.pop(slot, Share(0, 0))
            milli, mem = self._debts.left(slot)
            before = max(0, int(arrays.free_milli[slot]))
            capacity.milli[slot], capacity.gpu_mem_mib[slot] = has if there else (-1, -1)
            milli += has[0] - max(had[0], 0) + strangers.milli
            mem += has[1] - max(had[1], 0) + strangers.mem_mib
            self._debts.set(slot, milli, mem)
            self.free_total_milli += max(0, milli) - before
        arrays.traits[row] = 0 if row in self._gone else self._traits(node, up)
        self._up[row] = up
        self._touch(row)

    def _let_be_left(self, place: GpuSlot, first: int, second: int) -> None:
        """Set what is left of both amounts at a place; negative if some is owed."""
        before = 0 if place.index == NO_GPU else self.free_on(place).milli
        self._debts.set(place, first, second)
        if place.index != NO_GPU:
            self.free_total_milli += max(0, first) - before

    def _touch(self, node: int) -> None:
        """Tell whatever is kept of the node that more may be free there."""
        self._arrays.version[node] += 1
        self._arrays.freed[self._block[2] % len(self._arrays.freed)] = node
        self._block[2] += 1

    # What kernels are told

    def _note(self, slots: tuple[GpuSlot, ...]) -> bool:
        """Write down slots for the kernels; False where there are none, too many, some are the same or cannot be."""
        slots_at, count = self._slots_at, len(slots)
        if not 0 < count <= len(slots_at) or len(set(slots)) < count:
            return False
        try:
            for place, (node, index) in enumerate(slots):
                slots_at[place, 0] = node
                slots_at[place, 1] = index
        except (OverflowError, ValueError):  # a number that 64 bits do not hold is none of a slot
            return False
        return True

    def _least_card_mib(self, slots: tuple[GpuSlot, ...]) -> int:
        """The memory of the smallest of these GPUs; −1 where one of them is none."""
        mem_mib = self._capacity.gpu_mem_mib
        rows, width = mem_mib.shape
        there = all(0 <= node < rows and 0 <= index < width for node, index in slots)
        return min((int(mem_mib[slot]) for slot in slots), default=-1) if there else -1

    def _of_kinds(self, bits: int) -> BoolArray:
        """(N,): whether each node is of one of these kinds."""
        words = np.array(numbers_as_words(bits, self._kinds.words), dtype=np.int64)
        traits = self._arrays.traits
        there = traits[:, kernels.KIND_AT] > 0  # 0 where a node has vanished
        word = np.where(there, traits[:, kernels.KIND_AT] - kernels.ALLOWED, 0)
        return np.asarray(words[word] & traits[:, kernels.KIND_BIT] != 0)

    def _traits(self, node: Node, up: bool) -> tuple[int, int, int, int]:
        """The columns of the node's traits."""
        word, bit = divmod(self._kinds.number(node), WORD)
        model = self.models.setdefault(node.gpu_model.name, len(self.models) + 1) if node.gpu_model else 0
        return kernels.ALLOWED + word, 1 << bit, int(up), model

    def _traits_when_up(self) -> IntArray:
        """(N, 4): the traits if no node were lost; the same array until the nodes change."""
        if self._when_up is None:
            traits = self._when_up = self._arrays.traits.copy()
            traits[:, kernels.UP] = 1
            if self._gone:
                traits[sorted(self._gone), kernels.UP] = 0
        return self._when_up
