"""Clusters as a list of nodes, from a CSV file or from a spec such as `10x8:V100:96c:512g`.

Three CSV headers are known: openb's `sn,cpu_milli,memory_mib,gpu,model`, that of Alibaba's spot trace
`node_name,gpu_model,gpu_capacity_num,cpu_num`, and berth's own
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from berth.errors import ClusterError, SettingError, TraceError
from berth.files import write_table
from berth.gpu_models import gpu_model
from berth.model import GpuModel, Node
from berth.traces.fields import Field, amount, count, decimal, names, read_map, text
from berth.traces.opening import open_table
from berth.traces.table import Table

OWN_HEADER: Final = ("name", "gpus", "model", "gpu_mem_mib", "cpu_milli", "mem_mib", "labels")
FIELDS: Final = {
    "name": "text that no other row has; needed",
    "gpus": "number of GPUs; needed",
    "model": "their model",
    "gpu_mem_mib": "memory of each GPU, MiB; by default as the model has it",
    "cpus": "number of CPU cores",
    "cpu_milli": "the same in thousandths",
    "mem_gib": "memory, GiB",
    "mem_mib": "the same in MiB",
    "labels": "texts split by |",
}
"""What `--map-nodes` may name, and what stands in such a column."""
_OPENB: Final = ("sn", "gpu", "model", "cpu_milli", "memory_mib")
_SPOT: Final = {"name": "node_name", "gpus": "gpu_capacity_num", "model": "gpu_model", "cpus": "cpu_num"}
_KNOWN: Final = (
    dict(zip(("name", "gpus", "model", "cpu_milli", "mem_mib"), _OPENB, strict=True)),
    {name: name for name in OWN_HEADER},
    _SPOT,
)
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


def nodes_from_csv(path: str, columns: str | Mapping[str, str] = "") -> tuple[Node, ...]:
    """The nodes of a CSV file (plain or gzip, or a Parquet file of the same columns) in its order.

    `columns` names the columns of an unknown list: `name=host,gpus=cards,model=card`.
    """
    with open_table(path) as table:
        reader = _NodeReader(table, read_map(columns, FIELDS, "--map-nodes") if columns else _known(table))
        found = tuple(reader.node(line, fields) for line, fields in table.rows())
    if not found:
        raise TraceError(path, "at least one node below the header")
    return found


def _known(table: Table) -> Mapping[str, str]:
    """The columns of a list whose header is known."""
    for columns in _KNOWN:
        if set(table.header).issuperset(columns[field] for field in ("name", "gpus", "model")):
            return {field: column for field, column in columns.items() if column in table.header}
    raise TraceError(
        table.path,
        f"a list of nodes, or --map-nodes to say what the columns are: openb's header ({', '.join(_OPENB)}),"
        f" Alibaba's of 2026 ({', '.join(_SPOT.values())}) or berth's own ({', '.join(OWN_HEADER)})",
        line=table.header_line,
        value=table.header_text,
    )


class _NodeReader:
    def __init__(self, table: Table, columns: Mapping[str, str]) -> None:
        self._table = table
        for field in ("name", "gpus"):
            if field not in columns:
                raise SettingError(f"--map-nodes names no column for {field}; a node needs name and gpus")
        for field, column in columns.items():
            if column not in table.header:
                expected = (
                    f"a column '{column}' for {field}, as --map-nodes says; there are {table.header_text}"
                )
                raise table.error(table.header_line or 1, expected)
        self._columns = columns
        self._name = text(columns["name"], empty=False)
        self._gpus = count(columns["gpus"], at_most=1000)
        self._seen: set[str] = set()

    def node(self, line: int, fields: Sequence[str]) -> Node:
        table, columns = self._table, self._columns

        def value(field: str, known: Callable[[str], Field[Any]]) -> Any:
            return known(columns[field]).check(table, line, fields) if field in columns else None

        name = self._name.check(table, line, fields)
        if name in self._seen:
            raise table.error(line, "a name that no row above has", column=self._name.name, value=name)
        self._seen.add(name)
        gpus = self._gpus.check(table, line, fields)
        model_name = value("model", lambda column: text(column, empty=gpus == 0))
        model = gpu_model(model_name or "GPU") if gpus else None
        if model is not None and (memory := value("gpu_mem_mib", amount)) is not None:
            model = replace(model, mem_mib=memory)
        cores, gib = value("cpus", _cores_or_gib), value("mem_gib", _cores_or_gib)
        return Node(
            name,
            gpus,
            model,
            value("cpu_milli", amount) if cores is None else round(cores * 1000),
            value("mem_mib", amount) if gib is None else round(gib * 1024),
            value("labels", lambda column: names(column, what="labels")) or (),
        )


def _cores_or_gib(name: str) -> Field[float | None]:
    return decimal(name).or_nothing()


def write_nodes(nodes: Iterable[Node], path: str | Path) -> None:
    """Write nodes as a CSV file with berth's own header, from which `read_nodes` makes the same nodes."""
    write_table(Path(path), OWN_HEADER, (_row(node) for node in nodes))


def _row(node: Node) -> tuple[object, ...]:
    model = ("", "") if node.gpu_model is None else (node.gpu_model.name, node.gpu_model.mem_mib)
    return (node.name, node.gpus, *model, node.cpu_milli, node.mem_mib, "|".join(node.labels))
