"""The notebook of the examples runs in a real kernel and shows results as a person reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "compare.ipynb"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    book = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path_factory.mktemp("notebook")
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in book.cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_the_notebook_runs_and_shows_tables(outputs: list[list[dict[str, Any]]]) -> None:
    (shown,), (said,), (pandas,), (duckdb,) = outputs
    assert "<table>" in shown["data"]["text/html"]
    assert "sjf+best-fit" in shown["data"]["text/html"]
    assert len(shown["data"]["text/plain"]) < 300
    assert "mean wait" in said["text"] or "waits" in said["text"]
    assert "<table" in pandas["data"]["text/html"]
    assert "allocation_pct" in duckdb["data"]["text/plain"]


def test_the_notebook_is_kept_without_outputs() -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert all(
        not cell.outputs and cell.execution_count is None for cell in book.cells if cell.cell_type == "code"
    )
