"""`berth trace` from the shell: what it prints, what it writes, what it leaves out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth import traces
from berth.cli.trace import app
from berth.errors import BerthError, ClusterError, FetchError, TraceError

ROWS = "id,submit_ms,work_ms,user,gpus\na,0,3600000,ada,2\nb,7200000,1800000,bob,1\nc,3600000,x,ada,1\n"


def run(*words: str) -> tuple[str, str]:
    """What the command printed on standard output and on standard error; a BerthError comes through."""
    result = CliRunner().invoke(app, words)
    if isinstance(result.exception, BerthError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text(ROWS, "utf-8")
    return str(path)


def test_describe_prints_json_and_nothing_else(trace: str) -> None:
    out, err = run("describe", trace, "--skip-bad", "--json")
    bad = {"path": trace, "line": 4, "column": "work_ms", "value": "x"}
    expected = "a whole number of 0 or more"
    assert err == ""
    assert json.loads(out) == {
        "path": trace,
        "format": "berth",
        "jobs": 2,
        "first_submit_ms": 0,
        "last_submit_ms": 7_200_000,
        "users": 2,
        "virtual_clusters": 0,
        "gpu_hours": 2.5,
        "endless_jobs": 0,
        "jobs_by_gpus": {"1": 1, "2": 1},
        "jobs_by_milli": {"1000": 2},
        "jobs_by_model": {},
        "work_ms": {str(p): 3_600_000 if p == 100 else 1_800_000 for p in (0, 10, 25, 50, 75, 90, 99, 100)},
        "with_time_limit": 0,
        "with_estimate": 0,
        "with_patience": 0,
        "nodes": None,
        "cluster_gpus": None,
        "load": None,
        "bad_rows": [bad | {"expected": expected}],
    }


def test_every_key_of_the_json_is_documented(documentation: Callable[[str], str]) -> None:
    page = documentation("traces.md")
    out, _ = run("describe", "synthetic:demo", "--json")
    assert [key for key in json.loads(out) if f"`{key}`" not in page] == []


def test_describe_shows_a_table_and_lists_what_it_left_out(trace: str) -> None:
    out, err = run("describe", trace, "--skip-bad")
    assert "jobs" in out
    assert "2: 1 (50.0 %)" in out
    assert err.splitlines()[0] == "1 bad rows left out:"
    assert "line 4, column 'work_ms': 'x'; expected a whole number" in err
    assert "40 GPUs" in run("describe", "synthetic:demo")[0]


def test_a_bad_row_stops_the_command_unless_it_is_to_be_skipped(trace: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 4, column 'work_ms'"):
        run("describe", trace)
    out = tmp_path / "out.csv"
    with pytest.raises(TraceError, match="line 4, column 'work_ms'"):
        run("convert", trace, str(out))
    assert not out.exists()


def test_convert_writes_the_good_rows_with_the_gaps_divided(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    printed, err = run("convert", trace, str(out), "--skip-bad", "--compress", "6")
    assert printed == f"2 jobs written to {out}\n"
    assert "1 bad rows left out" in err
    assert [(job.id, job.submit_ms, job.work_ms) for job in traces.read(out)] == [
        ("a", 0, 3_600_000),
        ("b", 1_200_000, 1_800_000),
    ]
    as_json, err = run("convert", "synthetic:demo", str(out), "--json")
    assert (json.loads(as_json), err) == ({"out": str(out), "jobs": 400, "bad_rows": []}, "")


def test_convert_writes_the_cluster_too_where_there_is_one(trace: str, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    run("convert", "synthetic:demo", str(tmp_path / "out.csv"), "--nodes", str(nodes))
    assert traces.read_nodes(nodes) == traces.nodes_of("synthetic:demo")
    with pytest.raises(ClusterError, match="brings no cluster"):
        run("convert", trace, str(tmp_path / "out.csv"), "--nodes", str(nodes))


def test_formats_lists_what_is_known() -> None:
    out, _ = run("formats")
    for said in ("openb:", "philly:", "synthetic:pai-like?jobs=10000&seed=0", "berth trace fetch helios"):
        assert said in out
    known = json.loads(run("formats", "--json")[0])
    assert [entry["name"] for entry in known["formats"]] == [
        *(
            "openb",
            "philly",
            "pai",
            "pai-tasks",
            "helios",
            "fleetsim",
            "acme",
            "spot",
            "dlrm",
            "asi-spans",
            "asi",
        ),
        *("swf", "history", "berth"),
    ]
    assert known["synthetic"][0] == {"name": "demo", "settings": {"jobs": 400, "seed": 0, "load": 1.1}}


def test_fetch_refuses_what_the_catalogue_has_not() -> None:
    with pytest.raises(FetchError, match="no public trace 'nothing'"):
        run("fetch", "nothing")
    with pytest.raises(FetchError, match="has no file with 'absent' in its name; there are openb_node"):
        run("fetch", "openb", "--only", "absent")


def test_fetch_tells_licence_and_source_and_takes_what_is_there(tmp_path: Path) -> None:
    import hashlib

    from berth.traces import fetch

    content = b"sn,cpu_milli,memory_mib,gpu,model\n"
    (tmp_path / "nodes.csv").write_bytes(content)
    file = fetch.RemoteFile(
        "nodes.csv", "https://invalid/nodes.csv", None, hashlib.sha256(content).hexdigest()
    )
    known = fetch.PublicTrace("own", "a test", "nobody", "CC0", "none", (file,), readable=False)
    fetch.PUBLIC_TRACES["own"] = known
    try:
        out, _ = run("fetch", "own", "--to", str(tmp_path))
        as_json, _ = run("fetch", "own", "--to", str(tmp_path), "--json")
    finally:
        del fetch.PUBLIC_TRACES["own"]
    assert out.splitlines()[:3] == ["own: a test", "from nobody", "licence: CC0"]
    assert json.loads(as_json) == {"name": "own", "licence": "CC0", "files": [str(tmp_path / "nodes.csv")]}
