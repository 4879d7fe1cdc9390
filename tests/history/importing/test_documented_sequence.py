"""The sequence of docs/accounting.md, from a Slurm that is started from nothing, as it stands there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from berth.history.importing.table_import import FIELDS
from berth.history.store.folder import open_history
from tests.history.importing.test_real_slurm import PROGRAMS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") is None for name in PROGRAMS),
    reason="needs the packages of .ci/packages: a Slurm and MariaDB",
)
def test_one_documented_sequence_imports_reports_and_predicts(tmp_path: Path) -> None:
    for name in ("pymysql", "lightgbm"):
        pytest.importorskip(name, reason="the extras 'slurm' and 'account' are not installed")
    text = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(tests/slurm_cluster.sh .*?)```", text, re.DOTALL)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("BERTH_HISTORY", None)
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if "unshare" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this machine allows no network namespaces")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    folder = tmp_path / "out" / "cluster"
    assert "imported 216," in done.stdout
    stats = json.loads((folder / "stats.json").read_text())
    assert stats["totals"]["jobs"] == 216
    assert "pytorch" in done.stdout
    assert (folder / "report.html").stat().st_size > 1_000_000
    assert "of cases from" in done.stdout  # too few days to promise 80 of 100
    assert "no job waits" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to build the fake driver with")
def test_sampling_can_be_tried_without_a_gpu_as_documented(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="the extra 'sample' is not installed")
    text = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(make -s -C native tests.*?)```", text, re.DOTALL)
    for name in ("tests", "native", "build", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "out" / "stats.json").read_text())["totals"]["jobs"] == 1
    (record,) = open_history(tmp_path / "out" / "sampled").records()
    assert record.gpu_use_mean is not None
    assert 0 < record.gpu_use_mean <= 1
    assert record.gpu_mem_mean == pytest.approx(0.25, abs=0.01)


@pytest.mark.slow
def test_a_simulation_comes_into_the_history_as_documented(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(berth simulate .*?)```", text, re.DOTALL)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("BERTH_HISTORY", None)
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"read ([\d,]+), imported \1, updated 0", done.stdout)
    assert "fifo" in done.stdout.rpartition("imported")[2]


def test_the_documented_fields_of_a_map_are_those_there_are() -> None:
    text = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
    paragraph = text.partition("The fields of `--map` are")[2].partition("Times are")[0]
    assert set(re.findall(r"`([a-z_]+)`", paragraph)) == set(FIELDS)
