"""On real Slurms of other versions: their tables, their text and their JSON by each parser tell the same."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from berth.history.importing.pending import read_queue
from berth.history.store.folder import open_history
from tests.history.importing.of_many_kinds import KINDS, kinds_of, queued, records
from tests.live.slurm.real_slurm import needs_slurm, tell
from tests.other_slurms import each_other_slurm

HERE = Path(__file__).parent

STORY = r"""
out=$PWD/told; . {here}/jobs_of_many_kinds.sh
{berth} import slurmdbd $BERTH_SLURMDBD --history h --json >tables.json
# Every reason for which a job may wait, by its number in the tables: but those that Slurm has no name for any more.
{{
    echo "create temporary table one as select * from sandbox_job_table where job_name = 'fails';"
    for n in $(seq 0 33) $(seq 35 75) $(seq 78 220); do
        echo "update one set job_db_inx = 1000 + $n, id_job = 1000 + $n, state_reason_prev = $n;"
        echo "insert into sandbox_job_table select * from one;"
    done
}} | mariadb -uroot -S "$PWD/database.socket" slurm_acct_db
{berth} import slurmdbd $BERTH_SLURMDBD --history reasons --json >reasons.json
sacct -X -n -P -D -a -S 2020-01-01 -o JobIDRaw,Reason >reasons.txt
"""


@pytest.mark.slow  # a Slurm, half a minute of jobs
@needs_slurm
@each_other_slurm
def test_tables_text_and_json_of_another_slurm_tell_the_same(slurm: Path, tmp_path: Path) -> None:
    pytest.importorskip("pymysql", reason="the extra 'slurm' is not installed")
    story = STORY.format(here=HERE, berth=Path(sys.executable).parent / "berth")
    folder = tell(tmp_path / "c", story, CLUSTER_ACCOUNTING="yes", BERTH_TEST_SLURM=str(slurm), TZ="UTC")
    told = folder / "told"
    text = records(told / "sacct.txt", tmp_path / "text")
    assert kinds_of(text.values()) == KINDS
    parsers = sorted(told.glob("sacct-*.json"))
    assert len(parsers) >= 3
    for path in parsers:
        assert records(path, tmp_path / path.stem) == text, path.name
        queue = queued(read_queue(path.with_name(path.name.replace("sacct", "squeue"))))
        listed = queued(read_queue(told / "queue.txt"))
        assert {
            job: replace(queue[job], application="", reason="", blocked=False) for job in listed
        } == listed, path.name
    # The tables have what sacct leaves out: a job that was cancelled before it was eligible.
    tables = {(r.job_id, r.queued_ms): r for r in open_history(folder / "h").records()}
    assert {r.name for key, r in tables.items() if key not in text} == {"never"}
    assert {key: record for key, record in tables.items() if key in text} == text
    reasons = dict(line.split("|") for line in (folder / "reasons.txt").read_text().splitlines())
    imported = {r.job_id: r.wait_reason for r in open_history(folder / "reasons").records()}
    numbers = [job for job in reasons if int(job) >= 1000]
    assert len(numbers) == 218
    assert {job: imported[job] for job in numbers} == {job: _told(reasons[job]) for job in numbers}


def _told(reason: str) -> str:
    """A reason as it is kept."""
    return "" if reason == "None" else reason
