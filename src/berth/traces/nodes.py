"""Clusters as a list of nodes, from a CSV file or from a spec such as `10x8:V100:96c:512g`.

Two CSV headers are known: openb's `sn,cpu_milli,memory_mib,gpu,model` and berth's own
`name,gpus,model,gpu_mem_mib,cpu_milli,mem_mib,labels`, which `write_nodes` writes. In berth's own,
`cpu_milli` and `mem_mib` may be empty (unknown), `gpu_mem_mib` may be empty or absent (as the model has
it) and labels are split by `|`; everything after `model` may be left out.

A spec is one or more groups joined by commas, each `NODESxGPUS[:MODEL][:CORESc][:MEMORYg]`: `10x8:V100` is
ten nodes of eight V100; `4x0:64c:256g` four without a GPU, with 64 cores and 256 GiB. CPU and memory that a
group does not name are not accounted for. Nodes are called node-0, node-1, … with as many digits as the last
one needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from berth.errors import ClusterError, TraceError
from berth.gpu_models import gpu_model
from berth.model import GpuModel, Node
from berth.traces.fields import Field, amount, count, names, text
from berth.traces.opening import open_table
from berth.traces.table import Table
from berth.traces.writing import write_table

OWN_HEADER: Final = ("name", "gpus", "model", "gpu_mem_mib", "cpu_milli", "mem_mib", "labels")
_OPENB: Final = ("sn", "gpu", "model", "cpu_milli", "memory_mib")
_GROUP = re.compile(r"(\d{1,7})x(\d{1,4})((?::[^:,]*)*)")
_CORES = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)c")
_GIB = re.compile(r"(\d{1,7}(?:\.\d{1,3})?)g")


def nodes_from_spec(spec: str) -> tuple[Node, ...]:
    """The nodes that a spec describes; ClusterError where it is none."""
    groups: list[tuple[int, Node]] = []
    for group in spec.split(","):
        found = _GROUP.fullmatch(group.strip())
        if found is None:
            raise ClusterError(
                f"cluster '{spec}' is neither a file nor a spec: '{group}' is not"
                " NODESxGPUS[:MODEL][:CORESc][:MEMORYg], such as 10x8:V100 or 10x8:V100:96c:512g"
            )
        node = Node("", gpus=int(found[2]))
        for part in found[3].split(":")[1:]:
            if cores := _CORES.fullmatch(part):
                node = replace(node, cpu_milli=round(float(cores[1]) * 1000))
            elif gib := _GIB.fullmatch(part):
                node = replace(node, mem_mib=round(float(gib[1]) * 1024))
            elif part and node.gpus and node.gpu_model is None:
                node = replace(node, gpu_model=gpu_model(part))
            else:
                what = "a GPU model for nodes without GPUs" if not node.gpus else "one part too many"
                raise ClusterError(f"cluster '{spec}': '{part}' in '{group}' is {what}")
        if node.gpus and node.gpu_model is None:
            node = replace(node, gpu_model=GpuModel("GPU"))
        groups.append((int(found[1]), node))
    total = sum(number for number, _ in groups)
    if total == 0:
        raise ClusterError(f"cluster '{spec}' has no nodes; expected at least one, such as 1x8:V100")
    digits = len(str(total - 1))
    templates = (node for number, node in groups for _ in range(number))
    return tuple(replace(node, name=f"node-{index:0{digits}d}") for index, node in enumerate(templates))


def nodes_from_csv(path: str) -> tuple[Node, ...]:
    """The nodes of a CSV file (plain or gzip, or a Parquet file of the same columns) in its order."""
    with open_table(path) as table:
        header = set(table.header)
        if header.issuperset(_OPENB):
            name_of, gpus_of, memory_of = "sn", "gpu", "memory_mib"
        elif header.issuperset(OWN_HEADER[:3]):
            name_of, gpus_of, memory_of = "name", "gpus", "mem_mib"
        else:
            raise TraceError(
                path,
                f"a list of nodes: openb's header ({', '.join(_OPENB)})"
                f" or berth's own ({', '.join(OWN_HEADER)})",
                line=table.header_line,
                value=table.header_text,
            )
        reader = _NodeReader(table, name_of, gpus_of, memory_of)
        found = tuple(reader.node(line, fields) for line, fields in table.rows())
    if not found:
        raise TraceError(path, "at least one node below the header")
    return found


class _NodeReader:
    def __init__(self, table: Table, name_of: str, gpus_of: str, memory_of: str) -> None:
        self._table = table
        self._name = text(name_of, empty=False)
        self._gpus = count(gpus_of, at_most=1000)
        self._cpu = amount("cpu_milli")
        self._memory = amount(memory_of)
        self._gpu_memory = amount("gpu_mem_mib")
        self._labels = names("labels", what="labels")
        self._seen: set[str] = set()

    def node(self, line: int, fields: Sequence[str]) -> Node:
        table = self._table
        name = self._name.check(table, line, fields)
        if name in self._seen:
            raise table.error(line, "a name that no row above has", column=self._name.name, value=name)
        self._seen.add(name)
        gpus = self._gpus.check(table, line, fields)
        model_name = text("model", empty=gpus == 0).check(table, line, fields)
        model = gpu_model(model_name) if gpus else None
        if model is not None and (memory := self._amount(self._gpu_memory, line, fields)) is not None:
            model = replace(model, mem_mib=memory)
        labels = self._labels.check(table, line, fields) if self._labels.name in table.columns else ()
        return Node(
            name,
            gpus,
            model,
            self._amount(self._cpu, line, fields),
            self._amount(self._memory, line, fields),
            labels,
        )

    def _amount(self, field: Field[int | None], line: int, fields: Sequence[str]) -> int | None:
        return field.check(self._table, line, fields) if field.name in self._table.columns else None


def write_nodes(nodes: Iterable[Node], path: str | Path) -> None:
    """Write nodes as a CSV file with berth's own header, from which `read_nodes` makes the same nodes."""
    write_table(Path(path), OWN_HEADER, (_row(node) for node in nodes))


def _row(node: Node) -> tuple[object, ...]:
    model = ("", "") if node.gpu_model is None else (node.gpu_model.name, node.gpu_model.mem_mib)
    return (node.name, node.gpus, *model, node.cpu_milli, node.mem_mib, "|".join(node.labels))
