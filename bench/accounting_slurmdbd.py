"""300,000 jobs out of a real slurmdbd, against sacct printing the same jobs in the same run.

Starts a Slurm and a MariaDB of its own (tests/slurm_cluster.sh; packages in .ci/packages), puts the
jobs into its table, and prints medians and their ratio (asked: below 0.4), and the same of processor time, that of
slurmdbd and MariaDB included, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import as_installed

CLUSTER = Path(__file__).parents[1] / "tests" / "slurm_cluster.sh"

STORY = r"""
sbatch -o /dev/null --wrap true >/dev/null; sleep 3
mariadb -uroot -S "$PWD/database.socket" slurm_acct_db -e "
    insert into sandbox_job_table (job_name, id_assoc, id_job, id_resv, id_wckey, id_user, id_group, het_job_id,
        het_job_offset, state_reason_prev, nodes_alloc, \`partition\`, priority, cpus_req, state, timelimit,
        time_submit, time_eligible, time_start, time_end, tres_alloc, tres_req, nodelist, derived_es, account,
        id_qos, submit_line, work_dir)
    select concat('job_', seq % 500), 2, 1000 + seq, 0, 0, 0, 0, 0, 4294967294, seq % 4, 1, 'gpu', 1, 4, 3, 60,
        1700000000 + seq * 10, 1700000000 + seq * 10, 1700000000 + seq * 10 + seq % 1000,
        1700000000 + seq * 10 + seq % 1000 + seq % 50000, '1=4,2=8000,4=1,5=4,1001=2,1002=2',
        '1=4,2=8000,4=1,5=4,1001=2', concat('node', 1 + seq % 2), 'pytorch', 'root', 1,
        concat('sbatch -J job_', seq % 500, ' --gres=gpu:2 train.sh'), '/home/someone/work'
    from seq_1_to_{jobs}"
{python} - <<'END'
import json, os, resource, shutil, statistics, subprocess, sys, time

def processor_s():
    # Of all that has been run and of the two servers.
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = spent.ru_utime + spent.ru_stime
    for name in ("database", "slurmdbd"):
        pid = open(name + ".pid").read().strip()
        fields = open("/proc/" + pid + "/stat").read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total

fields = {fields!r}
ours, theirs, ours_cpu, theirs_cpu = [], [], [], []
for _ in range({runs}):
    begin, cpu = time.perf_counter(), processor_s()
    with open("sacct.txt", "wb") as out:
        words = ["sacct", "-X", "-a", "-D", "-P", "-S", "2023-01-01", "--delimiter=\x1f", "-o", fields]
        subprocess.run(words, stdout=out, check=True)
    theirs.append(time.perf_counter() - begin)
    theirs_cpu.append(processor_s() - cpu)
    shutil.rmtree("history", ignore_errors=True)
    begin, cpu = time.perf_counter(), processor_s()
    url = os.environ["BERTH_SLURMDBD"]
    words = ["{berth}", "import", "slurmdbd", url, "--history", "history", "--json"]
    told = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    ours.append(time.perf_counter() - begin)
    ours_cpu.append(processor_s() - cpu)
    assert told["imported"] >= {jobs}, told
a, b = statistics.median(ours), statistics.median(theirs)
c, d = statistics.median(ours_cpu), statistics.median(theirs_cpu)
found = {{"jobs": {jobs}, "import_s": a, "sacct_s": b, "ratio": a / b}}
print(json.dumps({{**found, "import_cpu_s": c, "sacct_cpu_s": d, "cpu_ratio": c / d}}))
END
"""


def main() -> None:
    from berth.history.importing.sacct import FIELDS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    python = Path(sys.executable)
    story = STORY.format(
        jobs=given.jobs,
        runs=given.runs,
        fields=",".join(FIELDS),
        python=python,
        berth=python.parent / "berth",
    )
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        words = {**as_installed(), "CLUSTER_DATABASE": "disk"}
        done = subprocess.run(
            [CLUSTER, folder, story], stdout=subprocess.PIPE, text=True, check=True, env=words
        )
    found = json.loads(done.stdout.splitlines()[-1])
    for name, value in found.items():
        print(f"{name:12} {value:12,.2f}")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
