"""`berth submit` and its kin as users type them, and what `berth.toml` says for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.errors import LiveError
from berth.live.local.config import flags_of, settings
from berth.live.local.request import request_of
from berth.live.local.submitting import _with_configured
from berth.partition.sizes import mem_mib
from tests.live.local.world import World, berth


@pytest.mark.parametrize("text", ["8G", "8g", "8GB", "8GiB", "8 GiB", "8192M", "8192mib"])
def test_a_size_may_be_written_as_people_do(text: str) -> None:
    assert mem_mib(text) == 8192


def test_cpus_are_reserved_where_they_are_asked_for_and_for_jobs_without_a_gpu() -> None:
    def cpu_milli(**flags: str) -> int:
        return request_of(flags, argv=["true"], cwd="/", now_ms=0).cpu_milli

    assert (cpu_milli(), cpu_milli(gpus="0"), cpu_milli(cpus="2")) == (0, 1000, 2000)


def test_a_line_for_a_shell_runs_in_one_and_its_exit_status_comes_back(shared: World) -> None:
    done = berth(shared, "submit", "--wait", "-g", "0", "-t", "5", "-J", "both", "-p", "3", "true && exit 4")
    assert done.returncode == 4, done.stderr
    job = shared.job("both")
    assert (job["name"], job["priority"], job["time_limit_ms"], job["gpus"]) == ("both", 3, 300_000, 0)
    assert job["application"] == "both"


def test_a_name_is_taken_where_ids_are(shared: World) -> None:
    one, two = (shared.submit("sleep 60", gpus=0, name="twins") for _ in range(2))
    done = berth(shared, "cancel", "99", "twins")
    assert (done.returncode, "there is no job '99'" in done.stderr) == (0, True)
    states = shared.wait(one, two)
    assert {state for state, _ in states.values()} == {"cancelled"}
    assert shared.job("twins")["id"] == two, "of jobs that have ended, the last"
    done = berth(shared, "cancel", "98", "nobody")
    assert done.returncode == 2
    assert "there is no job '98'" in done.stderr


@pytest.fixture
def configured(shared: World) -> Iterator[Path]:
    path = shared.folder / "berth.toml"
    yield path
    path.unlink(missing_ok=True)


def test_a_job_takes_from_berth_toml_what_command_line_and_script_leave_out(
    shared: World, configured: Path
) -> None:
    configured.write_text('[submit]\nmem = "4G"\npriority = 7\ncomment = "of the file"\n')
    script = shared.folder / "job.sh"
    script.write_text("#!/bin/sh\n#BERTH --priority 5\ntrue\n")
    job = json.loads(berth(shared, "submit", "--json", "--comment", "mine", str(script)).stdout)["ids"][0]
    told = shared.job(job)
    assert (told["mem_mib"], told["priority"], told["comment"]) == (4096, 5, "mine")
    cpu_only = json.loads(berth(shared, "submit", "--json", "--gpus", "0", "true").stdout)["ids"][0]
    assert (shared.job(cpu_only)["mem_mib"], shared.job(cpu_only)["priority"]) == (0, 7)
    shown = json.loads(berth(shared, "config", "--json").stdout)["settings"]
    assert {"table": "submit", "key": "mem", "value": "4G", "file": str(configured)} in shown
    configured.write_text('[submit]\nmem = "many"\n')
    done = berth(shared, "submit", "true")
    assert done.stderr.startswith(f"berth: {configured}: --mem 'many'; write a size")
    shared.wait(job, cpu_only)


@pytest.mark.parametrize(
    ("said", "of_file", "whole"),
    [
        ({"gpus": "0"}, {"mem": "4G", "mem_max": "8G", "mem_shows_max": True}, {"gpus": "0"}),
        ({"mem": "4G..8G"}, {"mem_max": "16G"}, {"mem": "4G..8G"}),
        ({"mem_max": "16G"}, {"mem": "4G..8G"}, {"mem": "4G", "mem_max": "16G"}),
        ({"mem": "2G"}, {"mem": "4G", "mem_max": "16G"}, {"mem": "2G", "mem_max": "16G"}),
    ],
)
def test_what_the_file_says_of_memory_that_grows_spoils_no_command_line(
    said: dict[str, str], of_file: dict[str, str | bool], whole: dict[str, str]
) -> None:
    flags, _ = _with_configured(dict(said), {}, (dict(of_file), {}))
    assert flags == whole
    request_of(flags, argv=["true"], cwd="/", now_ms=0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[submit", r"berth\.toml: "),
        ("[sumbit]\nmem = 1", r"no table \[sumbit\]; there are \[up\], \[submit\], \[notify\]"),
        ("[submit]\nmemory = 1", r"\[submit\] has no key 'memory'; there are mem"),
        ("[submit]\nmem = {a = 1}", r"\[submit\] mem is a dict; expected a text"),
    ],
)
def test_a_mistake_in_berth_toml_is_told_with_its_place(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "berth.toml"
    path.write_text(text)
    monkeypatch.setenv("BERTH_CONFIG", str(path))
    with pytest.raises(LiveError, match=said):
        settings({"up": ["policy"], "submit": ["mem"]})


def test_the_users_file_wins_over_the_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site.toml"
    site.write_text('[submit]\nmem = "1G"\ncomment = "site"\n[notify]\nto = "ann@example.org"\n')
    monkeypatch.delenv("BERTH_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("berth.live.local.config.SITE", str(site))
    (tmp_path / "berth").mkdir()
    (tmp_path / "berth" / "berth.toml").write_text('[submit]\nmem = "2G"\n')
    flags, files = flags_of("submit", ["mem", "comment", "notify"])
    assert flags == {"mem": "2G", "comment": "site", "notify": "ann@example.org"}
    assert files["--mem"].endswith("berth/berth.toml")
    assert files["--notify"] == str(site)
