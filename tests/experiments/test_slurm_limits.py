"""Limits of Slurm's QOS and associations hold in replays of a history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import HistoryError
from berth.experiments.recorded_run import keep_machine, recorded_run
from berth.experiments.slurm_limits import SlurmLimits, keep_limits, slurm_limits
from berth.experiments.what_if import what_if
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import records, write_records
from berth.model import Job, Record
from berth.policies import make_policy
from berth.policies.schemes.limits import Limit, Limits
from tests.experiments.test_believable import jobs, nodes, since_1970

QOS = """\
Name|Priority|GrpTRES|GrpJobs|MaxTRESPU|MaxJobsPU|MaxTRESPA|MaxJobsPA
normal|0||||8||
small|0|cpu=400,gres/gpu=6||gres/gpu=3,node=2||gres/gpu=5|
"""
ASSOCIATIONS = """\
Cluster|Account|User|Partition|GrpJobs|GrpTRES|MaxJobs|ParentName
made|root||||||
made|lab|||9|gres/gpu=14||root
made|bio|||||2|lab
made|bio|u1|||gres/gpu=4|5|
made|bio|u2|||||
made|bio|u2|a|||1|
"""
POLICY = "passing+fifo+first-fit"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "qos.txt").write_text(QOS, encoding="utf-8")
    (tmp_path / "assoc.txt").write_text(ASSOCIATIONS, encoding="utf-8")
    return tmp_path / "qos.txt", tmp_path / "assoc.txt"


def test_a_job_counts_to_its_qos_its_accounts_up_to_the_root_and_its_user(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    kept = keep_limits(tmp_path, *files)
    assert list(kept.of("made", "u1", "bio", "small")) == [
        Limit("group", "qos small", gpus=6),
        Limit("group", "user u1 of qos small", gpus=3, nodes=2),
        Limit("group", "account bio of qos small", gpus=5),
        Limit("group", "account lab", running=9, gpus=14),
        Limit("group", "user u1 of account bio", gpus=4),
        Limit("group", "running of user u1 in account bio", running=5),
    ]
    assert list(kept.of("made", "u2", "bio", "normal"))[0::2] == [
        Limit("group", "user u2 of qos normal", running=8),
        Limit("group", "running of user u2 in account bio", running=2),
    ]
    assert list(kept.of("made", "u9", "none", "none")) == []
    assert list(SlurmLimits().of("made", "u1", "bio", "small")) == []


def account_and_qos(user: str) -> tuple[str, str]:
    return ("bio", "normal") if user in ("u1", "u2", "u3") else ("lab", "small")


@pytest.mark.slow
def test_a_history_made_under_limits_gives_back_its_waits_once_they_are_imported(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    """Of every week the 90th percentile within 5 %; without the limits the replay says that it misses."""
    truth = keep_limits(tmp_path, *files)
    limits: dict[str, Limit] = {}

    def limited() -> Iterator[Job]:
        for job in jobs(1, ""):
            if job.gpus == 8:
                continue  # no user may hold so many
            mine = {limit.name: limit for limit in truth.of("made", job.user, *account_and_qos(job.user))}
            limits.update(mine)
            yield replace(job, groups=tuple(mine))

    work = list(limited())
    machine = nodes("")
    policy = Limits(make_policy(POLICY), tuple(limits.values()))
    events = list(simulate(work, Cluster(machine), policy))

    def recorded(record: Record) -> Record:
        account, qos = account_and_qos(record.user)
        return replace(since_1970(record), account=account, qos=qos)

    write_records(map(recorded, records(events, machine)), tmp_path / "ran.parquet")
    folder = tmp_path / "history"
    import_records(open_history(folder), tmp_path / "ran.parquet", Options(cluster="made"))
    keep_machine(folder, machine, [(0, POLICY)])
    assert not what_if(open_history(folder), [POLICY]).trust.is_believable

    words = ["import", "limits", "--qos", str(files[0]), "--assoc", str(files[1]), "--history", str(folder)]
    told = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert told.startswith("kept 2 QOS and 5 associations in ")
    told = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout
    assert told == '{"qos": 2, "associations": 5}\n'
    found = what_if(open_history(folder), [POLICY])
    assert {limit.name for limit in recorded_run(open_history(folder)).limits} == limits.keys()
    assert max(map(abs, found.trust.weekly_errors_pct)) <= 5
    assert found.as_it_was is found.result.runs[0]


def test_a_file_that_sacctmgr_did_not_print_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("a|b\n1|2\n", encoding="utf-8")
    with pytest.raises(HistoryError, match="line 1: no column Name; expected what `sacctmgr show qos -P`"):
        keep_limits(tmp_path, tmp_path / "other.txt", None)
    with pytest.raises(HistoryError, match="no column Cluster, Account, User"):
        keep_limits(tmp_path, None, tmp_path / "other.txt")
    with pytest.raises(HistoryError, match="cannot be read"):
        keep_limits(tmp_path, tmp_path / "absent.txt", None)
    assert keep_limits(tmp_path, None, None) == SlurmLimits()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Account|User\nlab|u1\n", "line 1: no column Cluster; expected"),
        ("Cluster|Account|User\nmade|lab|\nmade|bi", "line 3: 2 columns; expected 3, as the header has"),
    ],
)
def test_of_two_files_neither_is_kept_if_one_cannot_be_read_later(
    files: tuple[Path, Path], tmp_path: Path, text: str, expected: str
) -> None:
    files[1].write_text(text, encoding="utf-8")
    with pytest.raises(HistoryError, match=expected):
        keep_limits(tmp_path, *files)
    assert slurm_limits(tmp_path) == SlurmLimits()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            "small|cpu=x,gres/gpu=many|",
            "qos.txt, line 3, column GrpTRES: 'gres/gpu=many'; expected a whole number",
        ),
        ("small||4.5", "qos.txt, line 3, column GrpJobs: '4.5'; expected a whole number"),
    ],
)
def test_a_limit_that_is_no_number_is_refused_rather_than_not_heeded(
    row: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "qos.txt").write_text(f"Name|GrpTRES|GrpJobs\nnormal|gres/gpu=-1|\n{row}\n", encoding="utf-8")
    with pytest.raises(HistoryError, match=said):
        keep_limits(tmp_path, tmp_path / "qos.txt", None)
    assert keep_limits(tmp_path, None, None) == SlurmLimits()
