"""What the daemons of a trial are shown of a site: a copy that nobody else reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.live.slurm import trial
from berth.live.slurm.install import Planned
from berth.live.slurm.site_files import NodeGpus

GPUS = {"n1": NodeGpus("n1", ["v100"], 0, [], [], [], new_kinds=["v100_0"])}


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a slurmd that fails leaves what it was shown."""
    copy = tmp_path / "seen"
    program(tmp_path, f'cp -a "${{5%/slurm.conf}}" {copy}; echo "fatal: seen"; exit 1', monkeypatch)
    return copy


def program(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bin" / "slurmd"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(trial, "_PATH", f"{path.parent}:/usr/bin:/bin")


def site(tmp_path: Path, **files: str) -> Path:
    conf = tmp_path / "etc"
    conf.mkdir()
    for name, text in files.items():
        (conf / name.replace("_conf", ".conf")).write_text(text)
    return conf


def test_a_trial_shows_no_password_and_no_file_to_others(tmp_path: Path, seen: Path) -> None:
    conf = site(
        tmp_path, slurm_conf="old\n", slurmdbd_conf="StoragePass=secret\n", topology_conf="Switch=s1\n"
    )
    (conf / "slurm.conf").chmod(0o640)
    (conf / "topology.conf").chmod(0o600)
    planned = Planned({"slurm.conf": "ClusterName=c\n"}, GPUS)
    fault, _ = trial.fault_of(planned, {}, conf, f"{conf}/berth", "c")
    assert fault == "slurmd of node n1 would not start: fatal: seen"
    modes = {path.name: oct(path.stat().st_mode)[-3:] for path in seen.glob("*.conf")}
    assert modes == {"slurm.conf": "640", "topology.conf": "600"}
    assert oct(seen.stat().st_mode)[-3:] == "700"


LUA = """\
-- Accounting = "of these \\
local File = "/dev/x # y"
Include = 3 -- include me
"""


def test_a_trial_changes_only_what_slurm_reads_as_lines(tmp_path: Path, seen: Path) -> None:
    conf = site(tmp_path)
    files = {
        "slurm.conf": "Include nodes.conf\nAccountingStorageType=x\n",
        "nodes.conf": "MailProg=/x\nNodeName=n1\n",
        "gres.conf": "Name=gpu File=/dev/x\n",
        "job_submit.lua": f'{LUA}dofile("{conf}/berth/berth.lua") -- 1\n',
        "berth/berth.lua": LUA,
        "berth/prolog.sh": 'Accounting=1\nFile="$1" # x\n',
    }
    _, untried = trial.fault_of(Planned(files, GPUS), {}, conf, f"{conf}/berth", "c")
    shown = {name: (seen / name).read_text() for name in files}
    folder = shown["slurm.conf"].split()[1].removesuffix("/nodes.conf")
    assert shown["slurm.conf"].startswith(f"Include {folder}/nodes.conf\n\n\nStateSaveLocation=")
    assert (shown["nodes.conf"], untried) == ("\nNodeName=n1\n", [])
    assert shown["gres.conf"] == f"Name=gpu File={folder}/devices/%2Fdev%2Fx\n"
    assert shown["job_submit.lua"] == f'{LUA}dofile("{folder}/berth/berth.lua") -- 1\n'
    assert all(shown[name] == files[name] for name in ("berth/berth.lua", "berth/prolog.sh"))


def test_a_slurmd_that_does_not_answer_is_no_fault_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "exec sleep 600", monkeypatch)
    monkeypatch.setattr(trial, "LIMIT_S", 0.01)
    monkeypatch.setattr(trial, "_PATH", str(tmp_path / "bin"))  # without slurmctld
    conf = site(tmp_path)
    assert trial.fault_of(Planned({"slurm.conf": ""}, GPUS), {}, conf, f"{conf}/berth", "c") == (
        "",
        [
            "the GPUs of node n1: slurmd has not answered within 0.01 s",
            "slurmctld, which is not installed here",
        ],
    )
