"""On a real Slurm: an array of 10,000 tasks, heterogeneous jobs, and a controller whose backup takes over."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from berth.live.slurm.candidates import MOST_TASKS
from tests.live.slurm.real_slurm import as_before, needs_slurm, tell

GPUS = 4
pytestmark = [pytest.mark.slow, needs_slurm]

SETUP = r"""
sed -i "s/^SlurmctldHost=.*/&\nSlurmctldHost=backup(10.254.0.1)/" $DIR/slurm.conf
printf 'MaxArraySize=10001\nMaxJobCount=20000\nSlurmctldTimeout=4\n' >>$DIR/slurm.conf
echo 'CommunicationParameters=NoCtldInAddrAny' >>$DIR/slurm.conf
"""

STORY = r"""
install_berth
sed "s|^SlurmctldPidFile=.*|SlurmctldPidFile=$PWD/rest.pid|; s|^SlurmctldLogFile=.*|SlurmctldLogFile=$PWD/log/backup|" \
    slurm.conf >backup.conf
# The backup has a name and an address of its own, which only it needs to look up.
{ cat /etc/hosts; echo '10.254.0.1 backup'; } >hosts
unshare --uts --mount bash -c 'mount --bind hosts /etc/hosts; hostname backup; slurmctld -f "$PWD/backup.conf"'
place --card v100=1G

# A heterogeneous job is placed whole.
het=$(submit --gres=gpu:1 --wrap 'sleep 1' : --gres=gpu:1)
until_is $het COMPLETED
scontrol -o show job $het | grep -o 'TresPerNode=[^ ]*' >het.txt

# Ten thousand tasks are one row but for those that were placed.
big=$(submit --array=1-10000 --gres=gpu:1 --wrap 'sleep 0.2')
count() { squeue -h -a -t COMPLETED -j "$big" -r -o %i | wc -l; }
until_so '[ "$(count)" -ge 12 ]'
SLURM_BITSTR_LEN=0 squeue -h -a -t PENDING -j $big -o %i >rows.txt
"$BERTH" slurm status --state "$PWD/state" --json >status.json

# What it has not saved is lost: it saves every 5 s at most, and what is written now may have been read before.
for _ in 1 2; do
    touch mark
    until_so [ state/job_state -nt mark ]
done
# The controller dies, and its backup takes over.
kill -KILL $(cat slurmctld.pid)
until_so squeue -h -o %i
scontrol ping >ping.txt || true
before=$(count)
until_so '[ "$(count)" -ge $((before + 4)) ]'
echo "$before $(count)" >counts.txt
until_so '[ "$(logged started)" -ge "$(cut -d" " -f2 counts.txt)" ]' # it looks a little later
scancel "$big"
stop_berth
sed -n 's/.*Launching batch \(job \|JobId=\)\([0-9]*\) .*/\2/p' log/slurmd.node* >launched.txt
"""


def test_an_array_of_10000_a_het_job_and_a_backup_controller(open_folder: Path) -> None:
    setup = open_folder / "setup.sh"
    setup.write_text(SETUP)
    folder = tell(open_folder / "c", STORY, CLUSTER_SETUP=str(setup))
    components = as_before((folder / "het.txt").read_text()).split()
    assert [word.rpartition("_")[0] for word in components] == ["TresPerNode=gres:gpu:v100"] * 2
    # The tasks that were placed have left the row of the others, of which berth looks at the first alone.
    rows = (folder / "rows.txt").read_text().split()
    whole = [row for row in rows if "[" in row]
    assert len(whole) == 1
    assert whole[0].endswith("-10000]")
    assert len(rows) <= 1 + 2 * GPUS
    assert json.loads((folder / "status.json").read_text())["service"]["waiting"] <= MOST_TASKS
    # The backup has the queue, and berth goes on with it.
    assert "backup) at backup is UP" in (folder / "ping.txt").read_text()
    before, after = map(int, (folder / "counts.txt").read_text().split())
    assert before >= 12  # all that had completed when the controller last saved
    assert after >= before + 4
    events = [json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()]
    # Tasks whose starts were not saved run again, and their numbers are given to others; a job whose end was not saved
    # is said to run. Of all that, berth tells each start that the nodes made once, and its end once.
    told = {
        name: Counter((e["raw"], e["start_ms"]) for e in events if e["event"] == name and e.get("start_ms"))
        for name in ("started", "ended")
    }
    assert {times for each in told.values() for times in each.values()} == {1}
    assert len(told["started"]) >= after
    # The second part of the het job has no script of its own that a node could launch.
    script = {e["raw"] for e in events if not e["job"].endswith("+1")}
    launched = Counter((folder / "launched.txt").read_text().split())
    assert Counter(raw for raw, _ in told["started"] if raw in script) - launched == Counter()
