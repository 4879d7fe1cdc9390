"""A real Slurm with its database: every figure that berth imports is what sacct and sreport say."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from berth.history.jobs.job_report import cpu_use
from tests.live.slurm.real_slurm import tell

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "sacct", "munged", "mariadbd", "unshare")

# Jobs of many kinds: an array with a limit, two nodes, a heterogeneous one, a failure, a time-out, one that is
# cancelled before it runs, one that is requeued, and names that mean trouble.
STORY = r"""
B={berth}
sacctmgr -i add account ai >/dev/null; sacctmgr -i add user $(id -un) account=ai >/dev/null
for i in $(seq 900); do # until the controller knows the account; a job submitted earlier would have none
    scontrol -o show assoc_mgr users=$(id -un) flags=assoc | grep -q "Account=ai UserName=$(id -un)(" && break; sleep .2
done
J() {{ sbatch -A ai --parsable -o /dev/null "$@"; }}
J --comment=pytorch --gres=gpu:1 -J '한글 <script>alert(1)</script>' --wrap 'sleep 1' >/dev/null
J --array=1-4%2 --gres=gpu:1 -J "arr|'; DROP TABLE x; --" --comment=caffe --wrap 'sleep 1' >/dev/null
J -N2 --gres=gpu:2 --comment=vasp --wrap 'for i in $(seq 400000); do :; done; sleep 1' >/dev/null
J -n1 : -n1 --gres=gpu:1 -J het --wrap 'sleep 1' >/dev/null
J -J fails --wrap 'exit 3' >/dev/null
# slurmctld tells of the start of a job that was queued again only every 5 s. One that ends before is half a row of the
# database for a while, with the name "allocation".
again=$(J --requeue -J again --wrap 'touch again; until [ -e go ]; do sleep .1; done; sleep 12')
scancel $(J --begin=now+1hour -J never --wrap 'sleep 1')
halted=$(J -J halted --gres=gpu:1 --wrap 'touch halted; until [ -e go ]; do sleep .1; done')
for i in $(seq 900); do [ -e halted ] && [ -e again ] && break; sleep .1; done # RUNNING is said before a step runs
from=$(date +%s); scontrol suspend $halted; sleep 4; scontrol resume $halted; echo $(($(date +%s) - from)) >away.txt
scontrol requeue $again; touch go
for i in $(seq 600); do
    [ -z "$(squeue -h)" ] && break
    sleep .3; scontrol update JobId=$again StartTime=now 2>/dev/null || true
done
for i in $(seq 600); do # slurmdbd hears of an end, of a step's too, a little later
    sacct -n -a -D -S 2020-01-01 -s PENDING,RUNNING -o JobID | grep -q . ||
        sacct -n -X -a -D -S 2020-01-01 -o JobName | grep -qw allocation ||
        ! sdiag | grep -q 'DBD Agent queue size: *0$' || break
    sleep .2
done
$B import slurmdbd $BERTH_SLURMDBD --history h --json >first.json
$B import slurmdbd $BERTH_SLURMDBD --history h --json >second.json
$B import sacct --run --cluster sandbox --history h --json >run.json
fields=JobIDRaw,State,ElapsedRaw,AllocTRES,JobName,Submit,ExitCode,JobID
sacct -P -n -a -D --delimiter=$'\x1f' -S 2020-01-01 -o JobIDRaw,TotalCPU,TRESUsageInTot >steps.txt
sacct -X -a -D -P --delimiter=$'\x1f' -S 2020-01-01 -o $fields >sacct.txt
# slurmdbd adds up usage once an hour, and here when it is told to. sreport leaves out the hour under way, before its
# half: what was added up is put two hours back.
from=$(date -d '4 hours ago' +%Y-%m-%dT%H:00:00) to=$(date -d '1 hour' +%Y-%m-%dT%H:00:00)
sacctmgr -i roll $from $to >/dev/null
mariadb -uroot -S "$PWD/database.socket" slurm_acct_db -e \
    "update sandbox_assoc_usage_hour_table set time_start = time_start - 7200;
    update sandbox_usage_hour_table set time_start = time_start - 7200;
    update sandbox_event_table set time_start = time_start - 7200"
sreport -n -P -t Seconds -T gres/gpu,cpu cluster AccountUtilizationByUser start=$from end=$to >sreport.txt
# What only reads runs at the same time.
$B stats --by application --history h --json >stats.json &
$B stats --by account,user --history h --json >by_user.json &
$B stats --by job --history h --json >by_job.json &
$B report report.html --history h >/dev/null &
sacct -X -a -D -P --delimiter=$'\x1f' -S 2020-01-01 -o JobID,Cluster,JobName,State,Submit,Start,End >labels.txt
wait
$B import sacct labels.txt --history h --json >labels.json
sacct --json -a -D -S 2020-01-01 >jobs.json
$B import sacct jobs.json --history h --json >from_json.json
mariadb -uroot -S "$PWD/database.socket" slurm_acct_db -e "update sandbox_job_table set mod_time = unix_timestamp(),
    time_submit = time_submit - 500000, time_eligible = time_eligible - 500000, time_start = time_start - 500000,
    time_end = time_end - 500000 where job_name = 'fails'"
cp -r h late
$B import slurmdbd $BERTH_SLURMDBD --history late --json >late.json
$B job $again --history h --json >again.json
no=mysql+pymysql://nobody:nobody@127.0.0.1:33306/slurm_acct_db
if $B import slurmdbd $no --history h 2>denied.txt; then exit 1; fi
sql() {{ mariadb -uroot -S "$PWD/database.socket" "$@"; }}
sql -e "create database other; create table other.old_job_table (id_job int, job_name text);
    create table other.tres_table (id int, type text, name text); grant select on other.* to reader@'%'"
other=mysql+pymysql://reader:reader@127.0.0.1:33306/other
if $B import slurmdbd $other --history o 2>version.txt; then exit 1; fi
[ ! -e o/index.json ]
{python} - >lost.txt <<'END'
import os, subprocess
from berth.errors import HistoryError
from berth.history.importing import slurmdbd
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options

stream, calls = slurmdbd.Connection.stream, []


def cut(database, query, values):
    calls.append(query)
    if len(calls) == 2:
        number = database.value("select connection_id()")
        subprocess.run(["mariadb", "-uroot", "-Sdatabase.socket", "-e", "kill " + str(number)], check=True)
    yield from stream(database, query, values)


slurmdbd.Connection.stream = cut
url, history = os.environ["BERTH_SLURMDBD"], open_history("lost")
try:
    slurmdbd.import_slurmdbd(history, url, Options(), window=4)
except HistoryError as error:
    print(error)
print(len(history))
slurmdbd.Connection.stream = stream
slurmdbd.import_slurmdbd(history, url, Options(), window=4)
print(len(history))
END
"""


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") is None for name in PROGRAMS),
    reason="needs the packages of .ci/packages: a Slurm and MariaDB",
)
def test_what_a_real_slurm_recorded_is_what_berth_imports(tmp_path: Path) -> None:
    pytest.importorskip("pymysql", reason="the extra 'slurm' is not installed")
    story = STORY.format(berth=Path(sys.executable).parent / "berth", python=sys.executable)
    folder = tell(tmp_path / "c", story, CLUSTER_ACCOUNTING="yes")
    first, second, run = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("first", "second", "run")
    )
    rows = [line.split("\x1f") for line in (folder / "sacct.txt").read_text().splitlines()[1:]]
    # sacct leaves out a job that was cancelled before it was eligible; the tables have it.
    total = len(rows) + 1
    assert first == {**first, "read": total, "imported": total, "rejected": []}
    assert second == {**second, "read": total, "imported": 0, "updated": 0, "unchanged": total}
    # sacct tells the same of each try as the tables do: nothing changes, whichever way it came in.
    assert run == {**run, "imported": 0, "updated": 0, "unchanged": len(rows)}

    from berth.history.store.folder import open_history

    records = {(r.job_id, r.queued_ms): r for r in open_history(folder / "h").records()}
    assert len(records) == total
    never = [r for r in records.values() if r.start_ms is None]
    assert [(r.name, r.state) for r in never] == [("never", "cancelled")]
    halted = next(r for r in records.values() if r.name == "halted")
    assert halted.suspended_ms is not None
    away_s = int((folder / "away.txt").read_text())
    assert 3000 <= halted.suspended_ms <= 1000 * (away_s + 1)
    elapsed = sum(
        (r.end_ms - r.start_ms - (r.suspended_ms or 0)) // 1000
        for r in records.values()
        if r.start_ms is not None
    )
    assert elapsed == sum(int(row[2]) for row in rows)
    fails = next(row for row in rows if row[4] == "fails")
    assert fails[6] == "3:0"
    assert [r.exit_code for r in records.values() if r.name == "fails"] == [3]
    told = {row[0]: row[6] for row in rows if row[1] == "COMPLETED"}
    assert {r.job_id: f"{r.exit_code}:0" for r in records.values() if r.state == "completed"} == told
    gpus = {job: _gpus(tres) for job, state, _, tres, *_ in rows if not state.startswith("CANCELLED")}
    assert {r.job_id: r.gpus for r in records.values() if r.state != "cancelled"} == gpus
    assert sorted(r.name for r in records.values()) == sorted(row[4] for row in [*rows, [""] * 4 + ["never"]])
    assert max(r.attempt for r in records.values()) == 2
    stats = json.loads((folder / "stats.json").read_text())
    # A suspended job keeps its GPUs: sreport counts them, and leaves out its CPUs, as sacct does its time.
    kept = halted.suspended_ms // 1000
    gpu_seconds = sum(int(row[2]) * _gpus(row[3]) for row in rows) + kept
    assert round(stats["totals"]["gpu_hours"] * 3600) == gpu_seconds
    reported = [line.split("|") for line in (folder / "sreport.txt").read_text().splitlines()]
    used = {(row[1], row[2]): int(row[5]) for row in reported if row[2] and row[4] == "gres/gpu"}
    by_user = json.loads((folder / "by_user.json").read_text())["rows"]
    assert used
    assert {
        (row["account"], row["user"]): round(row["gpu_hours"] * 3600) for row in by_user if row["gpu_hours"]
    } == used
    cpu_seconds = {(row[1], row[2]): int(row[5]) for row in reported if row[2] and row[4] == "cpu"}
    imported = sum(
        r.cpu_milli * (r.end_ms - (r.start_ms or r.end_ms) - (r.suspended_ms or 0)) // 1_000_000
        for r in records.values()
    )
    assert sum(cpu_seconds.values()) == imported
    assert stats["totals"]["jobs"] == len({row[0] for row in rows}) + 1
    (again,) = json.loads((folder / "again.json").read_text())
    assert [(each["attempt"], each["state"]) for each in again["attempts"]] == [
        (1, "preempted"),
        (2, "completed"),
    ]
    # Text with nothing but labels, and JSON, tell of the same jobs; a row that came late is not passed over.
    labels, from_json, late = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("labels", "from_json", "late")
    )
    assert labels == {**labels, "imported": 0, "updated": 0, "unchanged": len(rows)}
    assert (from_json["imported"], from_json["rejected_count"]) == (0, 0)
    assert (late["imported"], late["updated"]) == (1, 0)
    shown = {row[0]: row[7] for row in rows}
    assert {r.job_id: r.label or r.job_id for r in records.values() if r.name != "never"} == shown
    # Each job, of all its attempts: what it held, as sacct's rows add up, with the GPUs of a suspended one.
    by_job = {row["job"]: row for row in json.loads((folder / "by_job.json").read_text())["rows"]}
    held: dict[str, int] = {}
    for row in rows:
        held[row[7]] = held.get(row[7], 0) + int(row[2]) * _gpus(row[3])
    held[halted.job_id] += kept
    assert {name: round(row["gpu_hours"] * 3600) for name, row in by_job.items()} == {
        **held,
        never[0].job_id: 0,
    }
    # What seff says: CPU time and memory of the steps of a job, and their parts of what was held.
    steps = [line.split("\x1f") for line in (folder / "steps.txt").read_text().splitlines()]
    cpu_s = {row[0]: int(row[2]) * _held(row[3], "cpu") for row in rows}  # 0 for a job of less than a second
    efficient = 0
    for record in records.values():
        own = [row for row in steps if row[0].startswith(f"{record.job_id}.")]
        if record.attempt == 1 and sum(r.job_id == record.job_id for r in records.values()) == 1:
            assert abs((record.cpu_used_ms or 0) - sum(_ms(row[1]) for row in own)) <= len(own)
            assert (record.mem_peak_mib or 0) == -(-max((_kib(row[2]) for row in own), default=0) // 1024)
            if record.cpu_used_ms and (held_s := cpu_s[record.job_id]):
                seff = sum(_ms(row[1]) for row in own) / 1000 / held_s
                assert cpu_use(record) == pytest.approx(seff, abs=0.002)
                efficient += 1
    assert efficient >= 1
    page = (folder / "report.html").read_text()
    assert "<script>alert(1)</script>" not in page
    assert "Access denied" in (folder / "denied.txt").read_text()
    assert "nobody:nobody" not in (folder / "denied.txt").read_text()
    assert "it is of a Slurm version that berth does not know" in (folder / "version.txt").read_text()
    # The connection was lost in the second window: the first is there, and the next import goes on to the end.
    *told, half, whole = (folder / "lost.txt").read_text().splitlines()
    assert "What came before is kept" in " ".join(told)
    assert 0 < int(half) < int(whole) == total


def _ms(text: str) -> int:
    minutes, seconds = text.split(":")[-2:]
    return round((int(minutes) * 60 + float(seconds)) * 1000)


def _kib(usage: str) -> int:
    sizes = [part.removeprefix("mem=") for part in usage.split(",") if part.startswith("mem=")]
    return (
        int(float(sizes[0][:-1]) * {"K": 1, "M": 1024, "G": 1 << 20}[sizes[0][-1]])
        if sizes[:1] > ["0"]
        else 0
    )


def _gpus(tres: str) -> int:
    return _held(tres, "gres/gpu")


def _held(tres: str, what: str) -> int:
    return next((int(part.split("=")[1]) for part in tres.split(",") if part.startswith(f"{what}=")), 0)
