"""Nobody outside `berth/cluster/` knows how a cluster's arrays lie."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import berth

SRC = Path(berth.__file__).parent
OUTSIDE = sorted(path for path in SRC.rglob("*.py") if SRC / "cluster" not in path.parents)

INSIDE = {"traits", "version", "held", "freed", "there", "jobs"}
"""Columns and arrays of the block that have no meaning elsewhere."""
HANDLES = {"block", "requests"}
"""What may be handed to a kernel as it is, and nothing else."""
KERNELS_OWN = {"compiled_arrays_of", "arrays_of", "block_of", "take", "give_back", "Arrays"}
"""What of `cluster.kernels` compiled kernels alone may use."""


def breaches(source: str, of_kernels: bool = False) -> Iterator[str]:
    """What a module does with the inside of a cluster, with the lines."""
    if "cluster" not in source:
        return
    tree = ast.parse(source)
    handed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            handed |= {id(argument) for argument in node.args}
        if isinstance(node, ast.ImportFrom) and node.module == "berth.cluster.kernels" and not of_kernels:
            for name in KERNELS_OWN.intersection(alias.name for alias in node.names):
                yield f"{node.lineno}: imports {name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not _is_cluster(node.value):
            continue
        private = node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr in INSIDE or private or (node.attr in HANDLES and id(node) not in handed):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _is_cluster(value: ast.expr) -> bool:
    """Whether a name or attribute is called as clusters are: `cluster`, `self.cluster`, `run._cluster`."""
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return name.lstrip("_") == "cluster"


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(SRC)))
def test_nobody_outside_reads_the_inside_of_a_cluster(path: Path) -> None:
    source = path.read_text("utf-8")
    kernels = "@compiled" in source or "@released" in source
    assert list(breaches(source, kernels)) == []


@pytest.mark.parametrize(
    "source",
    [
        "up = cluster.traits[:, 2]",
        "x = self.cluster.version.copy()",
        "row = cluster.requests[3]",
        "row = cluster.requests[number]",
        "table = cluster.requests",
        "cluster._arrays.free_cpu[0] = 1",
        "f(cluster.block[3])",
        "from berth.cluster.kernels import arrays_of",
    ],
)
def test_the_rule_sees_who_does(source: str) -> None:
    assert len(list(breaches(source))) == 1


def test_the_rule_lets_handles_be_handed_on() -> None:
    assert (
        list(breaches("best = kernel(cluster.block, cluster.requests, number, cluster.free.milli[node])"))
        == []
    )
