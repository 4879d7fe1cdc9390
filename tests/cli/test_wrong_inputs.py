"""Wrong words of many kinds: each is answered in one line that says what came, what was wanted, or what to do."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.command import berth

FILES = {
    "empty.csv": "",
    "own.csv": "name,at,secs\na,0,60\nb,soon,60\n",
    "cut.csv": "name,at\n",
    "none.csv": "name,at,secs\n",
    "own.toml": 'trace = "own.csv"\nmap = "id=name,submit=at,run=secs"\npolicies = ["fgd"]\ncluster = "1x1"\n',
    "cut.json": '{"jobs": [',
    "cut.toml": "[sweep\n",
    "train.py": "print(1)\n",
    "misspelt.toml": 'trace = "synthetic:demo"\npolicyes = ["fgd"]\n',
}
"""Of each file its text."""

WRONG = [
    ("frobnicate", "frobnicate", "see: berth --help"),
    ("trace frobnicate", "frobnicate", "see: berth trace --help"),
    ("console --history own.csv", "own.csv is a file", "name the folder of a history with --history"),
    (
        "stats --from yesterday-ish",
        "--from 'yesterday-ish' is no time",
        "expected 2026-11-21 or 2026-11-21T08:00",
    ),
    ("stats --to 7d", "--to '7d' is no time", "expected 2026-11-21 or 2026-11-21T08:00"),
    ("k8s node --dra x", "--dra 'x'", "write all, none or indices of GPUs, such as 0,1"),
    ("k8s node --dra 0,x", "--dra '0,x'", "write all, none or indices of GPUs"),
    ("k8s node --metrics x", "--metrics 'x'", "write HOST:PORT or :PORT, such as :9400"),
    ("k8s node --metrics :99999", "--metrics ':99999'", "write HOST:PORT or :PORT, such as :9400"),
    ("import frobnicate x", "frobnicate", "see: berth import --help"),
    ("queue --frobnicate", "--frobnicate", "see: berth queue --help"),
    ("doctor extra", "extra", "see: berth doctor --help"),
    ("job", "ID", "see: berth job --help"),
    ("report", "OUT", "see: berth report --help"),
    ("--host '' queue", "''", "expected MACHINE, USER@MACHINE"),
    ("--host there", "no command", "such as: berth --host there queue"),
    ("trace convert own.csv nodir/out.csv", "nodir/out.csv", "there is no folder nodir; make it first"),
    ("trace convert synthetic:demo out.csv --nodes nodir/n.csv", "nodir/n.csv", "make it first"),
    ("stats --only user", "--only user", "expected NAME=VALUE"),
    ("import samples .", "there is no spool in .", "`berth sample --spool .` writes one"),
    ("trace fetch openb --only nothing", "no file with 'nothing' in its name", "there are "),
    ("simulate nothere.csv", "nothere.csv", "no such file"),
    ("simulate nothere.csv --map id=name", "nothere.csv", "no such file"),
    ("simulate empty.csv", "empty.csv", "expected a header line"),
    ("simulate own.csv", "'name, at, secs'", "--map"),
    ("simulate own.csv --map id=name,submit=at,run=secs", "no cluster", "--cluster 10x8:V100"),
    (
        "simulate own.csv --map id=name,submit=at,run=secs --cluster 1x1",
        "line 3, column 'at': 'soon'",
        "expected",
    ),
    ("simulate synthetic:phily", "'phily'", "did you mean 'philly-like'?"),
    ("simulate synthetic:demo?jobz=5", "'jobz'", "there are jobs, seed, load"),
    ("simulate synthetic:demo?jobs=-5", "jobs=-5", "expected jobs and seed of 0 or more"),
    ("simulate synthetic:demo --policy fifo+bestfit", "'bestfit'", "did you mean 'best-fit'?"),
    ("simulate synthetic:demo --seed x", "'x'", "see: berth simulate --help"),
    ("simulate synthetic:demo --cluster 4by8", "'4by8'", "such as 10x8:V100"),
    ("simulate synthetic:demo --cluster 2x8 --map-nodes name=n,gpus=g", "'2x8'", "without --map-nodes"),
    ("simulate synthetic:demo --knowledge guess", "'guess'", "there are oracle, user, history, noisy"),
    ("simulate synthetic:demo --records nothere/x.parquet", "nothere/x.parquet", "there is no folder"),
    ("compare", "compare replays either a TRACE", "--from-history"),
    ("compare --from-history --since soon", "--since 'soon'", "7d"),
    ("compare --from-history --seeds 3", "--seeds", "only with a TRACE, not with --from-history"),
    (
        "compare synthetic:demo --since 1d --whole-gpus",
        "--since, --whole-gpus",
        "only with --from-history, not with a TRACE",
    ),
    ("size --from-history --until never", "--until 'never'", "7d"),
    ("backtest --since soon", "--since 'soon'", "7d"),
    ("compare synthetic:demo --seeds 0", "'--seeds': 0", "x>=1"),
    ("compare synthetic:demo --policies fgd,fifo,fgd", "'fgd' twice", "name each policy once"),
    ("compare synthetic:demo --policies ,", "','", "expected names that `berth policies` lists"),
    ("compare synthetic:demo --compress 0", "0.0", "x>=0.001"),
    ("compare synthetic:demo --seeds x", "'x'", "not a whole number"),
    ("compare synthetic:demo --out own.csv", "own.csv is a file", "name a folder"),
    ("simulate synthetic:demo --mtbf -1", "'--mtbf': -1.0", "x>=0.001"),
    ("simulate synthetic:demo --round -5", "'--round': -5.0", "x>=0.001"),
    ("simulate synthetic:demo --restart -1", "'--restart': -1.0", "x>=0"),
    ("simulate synthetic:demo --events e.csv", "e.csv", "a name that ends in .parquet"),
    ("wait --timeout x 1", "'x'", "not a number"),
    ("compare synthetic:demo --jobs 0", "'-j': 0", "x>=1"),
    ("advise --jobs 0", "'-j': 0", "x>=1"),
    ("sweep cut.toml", "cut.toml", "line 1"),
    ("sweep misspelt.toml", "policyes", "there are trace, cluster"),
    ("sweep nothere.toml", "nothere.toml", "expected a plan in TOML"),
    ("size synthetic:demo --keep p95-wait", "'p95-wait'", "there are p50-wait, p90-wait"),
    ("size synthetic:demo --by team", "'team'", "by user or by partition"),
    ("size synthetic:demo --keep p90-wait=-3", "'p90-wait=-3'", "expected 0 or more, such as p90-wait=30m"),
    ("size none.csv --map id=name,submit=at,run=secs --cluster 1x1", "none.csv", "no jobs to replay"),
    ("size synthetic:demo?jobs=0", "jobs=0", "no jobs to replay"),
    ("size", "got neither", "either a TRACE or, with --from-history"),
    ("size synthetic:demo --from-history", "got both", "either a TRACE or, with --from-history"),
    ("size synthetic:demo --out own.csv/x", "own.csv/x", "name a folder that can be written"),
    ("backtest --since 1d --until 2d", "--since 1d", "not before --until 2d; choose an earlier --since"),
    ("backtest synthetic:demo?jobs=9", "needs 3 weeks of 10 jobs or more", "there is 1"),
    ("sweep own.toml", "own.csv, line 3, column 'at': 'soon'", "expected"),
    ("policies --xml", "--xml", "see: berth policies --help"),
    ("trace convert synthetic:demo?jobs=5 out.xyz", "out.xyz", "ends in .csv, .csv.gz or .parquet"),
    ("stats --from 2026-01-02 --to 2026-01-01", "--from 2026-01-02", "not before --to 2026-01-01"),
    ("report out.pdf", "out.pdf", "a name that ends in .html"),
    ("report nothere/out.html", "nothere/out.html", "there is no folder nothere; make it first"),
    ("import sacct cut.csv --delimiter '\\'", "cut.csv", "the header has no column"),
    ("import sacct cut.csv --encoding klingon", "no encoding 'klingon'", "utf-8, latin-1"),
    ("stats --from 2026-13-01", "'2026-13-01'", "expected 2026-11-21"),
    ("import sacct cut.json", "cut.json", "no whole JSON document"),
    ("import sacct nothere.json", "nothere.json", "No such file"),
    ("cost", "needs prices", "--prices FILE.toml"),
    ("cost --prices nothere.toml", "nothere.toml", "expected a price list in TOML"),
    ("sample --interval 0", "0.0", "x>=0.05"),
    ("slurm run --interval nan", "--interval is nan", "expected a number of seconds"),
    ("slurm run --for inf", "--for is inf", "expected a number of seconds"),
    ("slurm run --mode place --partitions ,", "named partitions or QoS only", "name them with --partitions"),
    ("run --mem 4X -- true", "'4X'", "such as 512M, 4G or 1.5G"),
    ("run --mem 4G", "COMMAND", "see: berth run --help"),
    ("run --core-pct 150 -- true", "150", "0<=x<=100"),
    ("partition remove nothere", "'nothere'", "there are: none"),
    ("submit", "no command to run", "berth submit --mem 4G python train.py"),
    ("submit nothere", "'nothere'", "or on the PATH"),
    (
        "submit ./train.py",
        "the file './train.py' in",
        "chmod +x ./train.py, or name the program that runs it",
    ),
    ("submit train.py", "the file 'train.py' in", "as in: berth submit python train.py"),
    ("submit .", "'.' in", "is a folder; write a command"),
    (
        "run --interactive -- true",
        "berth run --interactive needs a terminal",
        "berth submit --interactive COMMAND",
    ),
    ("up --fake-gpus 4xA100-80Q", "'4xA100-80Q'", "such as 4xA100-80G"),
    (
        "simulate own.csv --map id=name --map id=at --map run=secs",
        "--map names the column of id twice",
        "name and at",
    ),
    ("simulate own.csv --map id=name --map submit=at", "--map names no column for run", "a job needs id"),
    ("import csv own.csv --map job=name --map job=at", "--map names the column of job twice", "name and at"),
    ("submit --chdir nothere true", "nothere", "there is no such folder"),
    ("submit --pty true", "--pty needs a terminal", "berth logs -f ID"),
    ("cancel", "name jobs", "`berth queue` shows them"),
    ("edit 1", "at least one option", "such as --mem 8G"),
    ("wait", "name jobs", "--all"),
    ("stats --json --csv", "--csv and --json", "choose one"),
    ("k8s status --csv --json", "--csv and --json", "choose one"),
    ("drain x", "'x'", "its number, as `berth status` shows it"),
    ("queue", "no queue is up", "start one with: berth up"),
    ("up --fake-gpus 2xA100-80G --no-gpus", "--no-gpus and --fake-gpus", "leave one out"),
    ("up --grow maybe", "'maybe'", "there are off, on and suspend"),
    ("up --per-gpu 0", "'0'", "expected a number of jobs, 1 to 999"),
    ("up --cpus none", "'none'", "such as 8"),
    ("up --metrics 99999", "99999", "from 1 to 65535"),
    ("k8s install --image x --quota x", "'x'", "NAMESPACE=GPUS"),
    ("slurm run --mode fly", "'fly'", "'advise', 'place'"),
    ("profile show nothere", "'nothere'", "there are googlenet"),
    ("slurm check --card a100=lots", "--card a100=lots", "such as a100=80G"),
    ("import asi .", ".: no folder of Parquet files", "expected day=D/hour=H/part-000.parquet"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wrong")
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


@pytest.mark.parametrize(("words", "came", "wanted"), WRONG, ids=[words for words, _, _ in WRONG])
def test_wrong_words_are_answered_with_what_came_and_what_to_do(
    words: str, came: str, wanted: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_STATE", str(folder / "state"))
    monkeypatch.setenv("BERTH_ROOT", str(folder / "root"))
    monkeypatch.setenv("BERTH_CONFIG", str(folder / "none.toml"))
    monkeypatch.delenv("BERTH_SOCKET", raising=False)
    before = sorted(folder.iterdir())
    done = berth(*shlex.split(words), cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("berth: ")
    assert done.stderr.count("\n") == 1
    assert came in done.stderr
    assert wanted in done.stderr
    assert sorted(folder.iterdir()) == before, "nothing is left behind"
