"""A million jobs of sacct's text into the history, against Polars parsing the same file to Parquet.

Prints medians (asked: 10 s a million jobs, within 512 MiB), the time of usage by application and month (below
0.4 s of five million) and of the whole report (below 15 s of five million), and writes them as JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

POLARS = "import sys, polars as p; p.read_csv(sys.argv[1], separator='|', quote_char=None).write_parquet(sys.argv[2])"
IMPORT = (
    "import sys; from pathlib import Path; from berth.history.store.folder import open_history; "
    "from berth.history.importing.sacct import import_text; from berth.history.store.import_result import Options; "
    "print(import_text(open_history(sys.argv[2]), Path(sys.argv[1]), Options()).imported)"
)

ROWS = """
    SELECT 1000 + i AS "JobIDRaw",
        ['train', 'bert', 'resnet', 'md', 'relax', 'jupyter', 'notebook', 'infer'][1 + (h % 8)::INT] || '_' || (g % 500)
            AS "JobName",
        'user' || (h % 483) AS "User", 'account' || (h % 40) AS "Account",
        ['ivy_v100_2', 'cas_v100nv_8', 'amd_a100nv_8', 'amd_a100_4'][1 + (g % 4)::INT] AS "Partition",
        'normal' AS "QOS",
        ['COMPLETED', 'COMPLETED', 'COMPLETED', 'FAILED', 'TIMEOUT', 'CANCELLED by 1001'][1 + (k % 6)::INT] AS "State",
        '0:0' AS "ExitCode", moment(submit) AS "Submit", moment(submit) AS "Eligible",
        moment(submit + wait) AS "Start", moment(submit + wait + run) AS "End", run AS "ElapsedRaw",
        2880 AS "TimelimitRaw", nodes AS "NNodes", gpus * 4 AS "NCPUS", (gpus * 8) || 'G' AS "ReqMem",
        printf('billing=%d,cpu=%d,gres/gpu:v100=%d,gres/gpu=%d,mem=%dG,node=%d',
            gpus * 4, gpus * 4, gpus, gpus, gpus * 8, nodes) AS "AllocTRES",
        printf('billing=%d,cpu=%d,gres/gpu=%d,mem=%dG,node=%d', gpus * 4, gpus * 4, gpus, gpus * 8, nodes) AS "ReqTRES",
        CASE WHEN nodes = 2 THEN printf('gpu[%03d-%03d]', (g % 400)::INT, (g % 400)::INT + 1)
            ELSE printf('gpu%03d', (g % 400)::INT) END AS "NodeList",
        ['None', 'Resources', 'Priority', 'AssocGrpGRES', 'QOSMaxGRESPerUser'][1 + (g % 5)::INT] AS "Reason",
        ['pytorch', 'tensorflow', 'python', 'caffe', 'lammps', 'gromacs', '', 'vasp'][1 + (h % 8)::INT] AS "Comment"
        {measured}
    FROM (
        SELECT *, (CASE WHEN h % 10 < 6 THEN 0 ELSE g % 20000 END)::BIGINT AS wait,
            (60 + (k % 100000) / (1 + h % 7))::BIGINT AS run, (1 << (g % 4))::INT AS gpus,
            1 + (h % 3 = 0)::INT AS nodes
        FROM (SELECT i, hash(i) AS h, hash(i * 7 + 1) AS g, hash(i * 13 + 5) AS k,
            1577836800 + (i * 7.3)::BIGINT AS submit FROM range({jobs}) t(i))
    )
"""


MEASURED = """, ((k % 1000) / 1000.0 * (0.4 + 0.1 * (h % 7)))::DECIMAL(5, 4) AS "uGPUcore",
        ((k // 1000 % 1000) / 1000.0)::DECIMAL(5, 4) AS "uGPUmem"
"""


def write_jobs(path: Path, jobs: int, *, measured: bool = False) -> None:
    """Text as `sacct -P` prints it, 22 columns; with `measured` two more, of what GPUs were used for."""
    with duckdb.connect() as database:
        database.execute(
            "CREATE MACRO moment(s) AS strftime(make_timestamp((s)::BIGINT * 1000000), '%Y-%m-%dT%H:%M:%S')"
        )
        options = "(FORMAT csv, DELIMITER '|', HEADER true, QUOTE '')"
        database.execute(
            f"COPY ({ROWS.format(jobs=jobs, measured=MEASURED if measured else '')}) TO '{path}' {options}"
        )


def seconds(code: str, *arguments: object) -> tuple[float, float]:
    """How long a program of Python takes, and how much processor time."""
    begin, cpu = time.perf_counter(), processor_s(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin, processor_s(resource.RUSAGE_CHILDREN) - cpu


def processor_s(whose: int) -> float:
    """Processor time so far."""
    spent = resource.getrusage(whose)
    return spent.ru_utime + spent.ru_stime


def median(pairs: list[tuple[float, float]], which: int) -> float:
    """Of times (0) or processor times (1)."""
    return statistics.median(pair[which] for pair in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        jobs, history = Path(folder) / "jobs.psv", Path(folder) / "history"
        write_jobs(jobs, given.jobs)
        imports, others = [], []
        for _ in range(given.runs):
            shutil.rmtree(history, ignore_errors=True)
            imports.append(seconds(IMPORT, jobs, history))
            peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            try:
                others.append(seconds(POLARS, jobs, Path(folder) / "polars.parquet"))
            except subprocess.CalledProcessError:
                print("Polars is not installed: see requirements/bench.in", file=sys.stderr)
                others.append((float("nan"), float("nan")))
            if len(imports) == 1:
                first_peak_mib = peak_mib

        from berth.history.store.folder import open_history
        from berth.report.accounting import Head, write_accounting
        from berth.statistics.tables import Tables

        usage, reports = [], []
        with open_history(history).database() as database:
            for _ in range(given.runs):
                begin, cpu = time.perf_counter(), processor_s(resource.RUSAGE_SELF)
                Tables(database).usage(("application", "month"))
                usage.append((time.perf_counter() - begin, processor_s(resource.RUSAGE_SELF) - cpu))
                begin, cpu = time.perf_counter(), processor_s(resource.RUSAGE_SELF)
                head = Head(title="bench", period="all", command="", created="", version="")
                write_accounting(Path(folder) / "report.html", Tables(database), head)
                reports.append((time.perf_counter() - begin, processor_s(resource.RUSAGE_SELF) - cpu))
        mib = jobs.stat().st_size / 2**20
    found = {
        "jobs": given.jobs,
        "text_mib": mib,
        "import_s": median(imports, 0),
        "polars_s": median(others, 0),
        "ratio": median(imports, 0) / median(others, 0),
        "import_cpu_s": median(imports, 1),
        "polars_cpu_s": median(others, 1),
        "cpu_ratio": median(imports, 1) / median(others, 1),
        "import_peak_mib": first_peak_mib,
        "usage_by_application_and_month_s": median(usage, 0),
        "usage_by_application_and_month_cpu_s": median(usage, 1),
        "report_s": median(reports, 0),
        "report_cpu_s": median(reports, 1),
    }
    for name, value in found.items():
        print(f"{name:36} {value:12,.2f}")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
