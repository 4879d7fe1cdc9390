"""Clusters from files and from specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth import traces
from berth.errors import ClusterError, TraceError
from berth.gpu_models import GPU_MODELS, gpu_model
from berth.model import GpuModel, Node


def test_a_spec_is_nodes_by_gpus_model_cores_and_memory() -> None:
    assert traces.read_nodes("2x8:V100:96c:512g,1x0:1.5c") == (
        Node("node-0", 8, gpu_model("V100"), 96_000, 524_288),
        Node("node-1", 8, gpu_model("V100"), 96_000, 524_288),
        Node("node-2", 0, None, 1_500, None),
    )
    assert [node.name for node in traces.read_nodes("11x1:T4")][-2:] == ["node-09", "node-10"]
    assert traces.read_nodes("1x2")[0].gpu_model == GpuModel("GPU")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("10", "neither a file nor a spec"),
        ("nodes.csv", "neither a file nor a spec"),
        ("0x8:V100", "has no nodes"),
        ("1x8:V100:T4", "one part too many"),
        ("1x0:V100", "a GPU model for nodes without GPUs"),
        ("1x8:V100,", "'' is not NODESxGPUS"),
    ],
)
def test_a_spec_that_is_none_is_refused_with_what_one_looks_like(spec: str, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        traces.read_nodes(spec)


def test_both_node_headers_are_known(tmp_path: Path) -> None:
    openb = tmp_path / "a"
    openb.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,1000,2048,2,P100\nm,1000,2048,0,\n", "utf-8")
    own = tmp_path / "b"
    own.write_text("name,gpus,model,mem_mib,cpu_milli\nn,2,P100,2048,1000\nm,0,,2048,1000\n", "utf-8")
    expected = (Node("n", 2, gpu_model("P100"), 1000, 2048), Node("m", 0, None, 1000, 2048))
    assert traces.read_nodes(openb) == traces.read_nodes(own) == expected


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("name,gpus,model\nn,2,\n", 2, "model"),
        ("name,gpus,model\nn,x,T4\n", 2, "gpus"),
        ("name,gpus,model\nn,1,T4\nn,1,T4\n", 3, "name"),
        ("name,gpus\nn,1\n", 1, None),
        ("name,gpus,model\n", None, None),
    ],
)
def test_a_bad_node_is_told_by_line_and_column(
    text: str, line: int | None, column: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(TraceError) as caught:
        traces.read_nodes(path)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_an_unknown_model_has_only_a_name() -> None:
    assert gpu_model("B9000") == GpuModel("B9000")
    assert gpu_model("A100-80").mem_mib == 81_920
    assert all(name == model.name for name, model in GPU_MODELS.items())
