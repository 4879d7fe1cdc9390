"""`berth submit` and its kin as users type them, and what `berth.toml` says for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.cli.app import load
from berth.cli.local import option_names
from berth.errors import LiveError
from berth.live.local.config import LISTS, SWITCHES, flags_of, settings
from berth.live.local.request import request_of
from berth.live.local.submitting import _with_configured
from berth.partition.sizes import mem_mib
from tests.command import berth as berth_here
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
    assert done.stderr.startswith(f"berth: {configured}, line 2: --mem 'many'; write a size")
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
        ("[submit]\nmem = {a = 1}", r"toml, line 2: \[submit\] mem is {'a': 1}; expected a text or a number"),
        ("[submit]\nmem = true", r"toml, line 2: \[submit\] mem is True; expected a text or a number"),
        (
            "[up]\n[submit]\n\nexclusive = 'no'",
            r"line 4: \[submit\] exclusive is 'no'; expected true or false",
        ),
    ],
)
def test_a_mistake_in_berth_toml_is_told_with_its_place(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "berth.toml"
    path.write_text(text)
    monkeypatch.setenv("BERTH_CONFIG", str(path))
    with pytest.raises(LiveError, match=said):
        settings({"up": ["policy"], "submit": ["mem", "exclusive"]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[submit]\nname = "a"\nmem = "8Q"', "line 3: --mem '8Q'; write a size with M, G or T"),
        ("[submit]\nparam = ['lr']", "line 2: --param 'lr'; write NAME=VALUE,VALUE"),
        ('[submit]\n"host-mem" = "lots"', "line 2: --host-mem 'lots'; write a size"),
        ('[notify]\non = "ends"', "line 2: --notify-on 'ends'; there are start, end"),
        (
            '[up]\nper-gpu = 0\n[submit]\nmem = "8G"',
            "line 2: --per-gpu '0'; expected a number of jobs",
        ),
        ('[up]\nfake-gpus = "4xA100-80Q"', "line 2: --fake-gpus '4xA100-80Q'; write NxMODEL-SIZE"),
    ],
)
def test_config_refuses_a_value_that_no_job_could_have(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "berth.toml"
    path.write_text(text)
    monkeypatch.setenv("BERTH_CONFIG", str(path))
    done = berth_here("config")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"berth: {path}")
    assert said in done.stderr


def test_the_options_that_are_true_or_false_are_the_commands_own() -> None:
    flags = [
        each
        for name in ("up", "submit")
        for each in load(name).params
        if each.name in option_names(load(name))
    ]
    assert {each.name for each in flags if each.is_flag} == SWITCHES
    assert {each.name for each in flags if each.multiple} <= LISTS


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
    assert files["--mem"].endswith("berth/berth.toml, line 2")
    assert files["--notify"] == f"{site}, line 5"
