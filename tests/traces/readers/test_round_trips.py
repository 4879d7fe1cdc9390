"""What is written is what is read, to the last character."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth import traces
from berth.errors import SettingError, TraceError
from berth.model import Job, Node
from tests.examples import examples
from tests.traces.any_jobs import JOB_LISTS, nodes

FEW = settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.csv.gz", "jobs.parquet"])
@FEW
@given(jobs=JOB_LISTS)
def test_every_field_of_every_job_survives(name: str, tmp_path: Path, jobs: list[Job]) -> None:
    path = tmp_path / name
    traces.write(jobs, path)
    assert list(traces.read(path, file_order=True)) == jobs
    assert list(traces.read(path)) == sorted(jobs, key=lambda job: job.submit_ms)


@FEW
@given(cluster=st.lists(nodes(), min_size=1, max_size=5, unique_by=lambda node: node.name))
def test_every_field_of_every_node_survives(tmp_path: Path, cluster: list[Node]) -> None:
    path = tmp_path / "nodes.csv"
    traces.write_nodes(cluster, path)
    assert traces.read_nodes(path) == tuple(cluster)


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.csv.gz", "jobs.parquet"])
def test_the_same_jobs_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    written = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        traces.write(traces.read("synthetic:demo"), tmp_path / folder / name)
        written.append((tmp_path / folder / name).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_a_name_may_hold_what_means_something_elsewhere(ending: str, tmp_path: Path) -> None:
    folder = tmp_path / "it's [1] *"
    folder.mkdir()
    path = folder / f"jobs? 100%{ending}"
    traces.write([Job("a", 0, 1)], path)
    assert list(traces.read(path)) == [Job("a", 0, 1)]
    assert list(folder.iterdir()) == [path]


def test_what_the_file_could_not_give_back_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    for name in ("jobs.csv", "jobs.parquet"):
        with pytest.raises(TraceError, match="column 'models'"):
            traces.write([Job("a", 0, 1, models=("A|B",))], tmp_path / name)
    with pytest.raises(TraceError, match=r"ends in \.csv, \.csv\.gz or \.parquet"):
        traces.write([], tmp_path / "jobs.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_compressed_arrivals_keep_the_work(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    traces.write([Job("a", 600, 5), Job("b", 1200, 6), Job("c", 1207, 7)], path)
    assert list(traces.read(path, compress=6)) == [Job("a", 100, 5), Job("b", 200, 6), Job("c", 201, 7)]
    with pytest.raises(SettingError, match="by a positive number, not by 0"):
        list(traces.read(path, compress=0))
