"""The commands as a user types them: what they print, where, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import berth

ROOT = Path(__file__).resolve().parents[2]


def answer(*arguments: str | Path) -> object:
    done = berth(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", ["berth policies", "berth policies --json", "berth compare --help"])
def test_a_reader_that_has_enough_is_no_error(command: str) -> None:
    folder = Path(sys.executable).parent
    script = f'{folder}/{command} | head -1 >/dev/null; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_full_standard_output_is_named() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [Path(sys.executable).with_name("berth"), "policies"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (2, "berth: standard output: No space left on device\n")


def test_a_misspelt_workload_is_answered_with_the_nearest() -> None:
    done = berth("compare", "synthetic:phily-like")
    assert done.returncode == 2
    assert done.stderr.startswith("berth: no synthetic workload 'phily-like' (did you mean 'philly-like'?)")


POLICIES = """
def idle(queue, cluster, now_ms):
    return iter(())

def nothing(queue, cluster, now_ms):
    return None
"""


@pytest.mark.parametrize(
    ("policy", "status", "said"),
    [
        (
            "idle",
            1,
            "berth: warning: own:idle, seed 0, finished none of 20 jobs; does the policy yield placements?",
        ),
        (
            "nothing",
            2,
            "the policy returned None; expected it to yield decisions, or to return a list of them ({folder}/own.py:5)",
        ),
    ],
)
def test_a_policy_that_does_nothing_is_no_success(
    tmp_path: Path, policy: str, status: int, said: str
) -> None:
    (tmp_path / "own.py").write_text(POLICIES)
    done = berth("simulate", "synthetic:demo?jobs=20", "--policy", f"own:{policy}", cwd=tmp_path)
    assert done.returncode == status
    assert said.format(folder=tmp_path) in done.stderr


def test_a_table_of_other_columns_is_compared_and_converted(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("name,at,secs\na,0,60\nb,10,60\n")
    mapped = ("--map", "id=name,submit=at,run=secs")
    result = answer("compare", table, *mapped, "--cluster", "1x1:V100", "--policies", "fgd", "--json")
    assert isinstance(result, dict)
    assert [run["finished"] for run in result["runs"]] == [2]
    done = berth("trace", "convert", table, tmp_path / "out.csv", *mapped)
    assert (done.returncode, done.stdout) == (0, f"2 jobs written to {tmp_path / 'out.csv'}\n")


def test_compare_prints_json_and_nothing_else() -> None:
    result = answer("compare", "synthetic:demo?jobs=80", "--policies", "fgd,random", "--seeds", "3", "--json")
    assert isinstance(result, dict)
    assert list(result) == [
        *(
            "answers",
            "trace",
            "cluster",
            "policies",
            "seeds",
            "compress",
            "knowledge",
            "mode",
            "runs",
            "metrics",
            "skipped",
        ),
        "never_fitting",
    ]
    assert (result["policies"], result["seeds"], len(result["runs"])) == (["fgd", "random"], [0, 1, 2], 6)
    assert {run["finished"] for run in result["runs"]} == {80}


def test_simulate_is_a_comparison_of_one() -> None:
    one = answer("simulate", "synthetic:demo?jobs=80", "--policy", "sjf", "--seed", "4", "--json")
    same = answer("compare", "synthetic:demo?jobs=80&seed=4", "--policies", "sjf", "--json")
    assert isinstance(one, dict)
    assert isinstance(same, dict)
    assert one["runs"][0] | {"seed": 0} == same["runs"][0]


def test_the_folder_has_the_report_the_numbers_and_the_cluster(tmp_path: Path) -> None:
    out = tmp_path / "out"
    # Progress is told every ten seconds, which on a busy machine this may take.
    done = berth("-q", "compare", "synthetic:demo?jobs=80", "--policies", "fgd,sjf", "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in out.iterdir()) == [
        *("cluster.csv", "report.html", "result.json", "runs")
    ]
    assert [line for line in done.stdout.splitlines() if line.startswith("wrote")] == [
        f"wrote {out}/report.html",
        f"wrote {out}/result.json",
        f"wrote {out}/cluster.csv",
    ]
    again = answer(
        "compare", "synthetic:demo?jobs=80", "--policies", "fgd", "--cluster", out / "cluster.csv", "--json"
    )
    whole = json.loads((out / "result.json").read_text())
    assert isinstance(again, dict)
    assert again["runs"][0] == whole["runs"][0]


def test_policies_are_listed_with_a_line_each() -> None:
    listed = answer("policies", "--json")
    assert isinstance(listed, list)
    assert {"name": "fgd", "kind": "placement"}.items() <= next(
        row for row in listed if row["name"] == "fgd"
    ).items()
    shown = berth("policies").stdout
    assert all(row["name"] in shown for row in listed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "nowhere.csv"), "nowhere.csv"),
        (("simulate", "synthetic:dmeo"), "no synthetic workload 'dmeo'"),
        (("simulate", "synthetic:demo", "--policy", "fofi"), "no policy 'fofi' (did you mean 'fifo'?)"),
        (("simulate", "synthetic:demo", "--cluster", "10y8"), "10y8"),
        (
            ("simulate", "synthetic:demo", "--interference", "magic"),
            "no interference model 'magic'; there are none",
        ),
        (("experiment", "inflate", "--nodes", "2x0", "--pods", "synthetic:demo"), ""),
    ],
)
def test_a_mistake_ends_with_one_line_and_status_2(arguments: tuple[str, ...], message: str) -> None:
    done = berth(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.startswith("berth: ")
    assert "Traceback" not in done.stderr


def test_bad_rows_can_be_left_out_and_are_listed(tmp_path: Path) -> None:
    trace = tmp_path / "philly.csv"
    trace.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,a\n2017-10-09 07:01:55,-1,1,66.0,a\n2017-10-09 07:05:55,6,x,66.0,a\n"
    )
    refused = berth("simulate", trace)
    assert refused.returncode == 2
    assert "philly.csv, line 3, column 'duration': '-1'" in refused.stderr
    done = berth("simulate", trace, "--skip-bad")
    assert done.returncode == 0
    assert "line 3, column 'duration': '-1'" in done.stderr
    assert "line 4, column 'num_gpus': 'x'" in done.stderr
    assert "2 bad rows left out" in done.stderr


def test_jobs_that_no_node_could_hold_are_named_with_what_is_short(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    rows = "".join(f"j{at},0,1000,1,{9000 if at % 2 else 10}\n" for at in range(14))
    trace.write_text("id,submit_ms,work_ms,gpus,cpu_milli\n" + rows)
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("name,gpus,model,cpu_milli,mem_mib\na,2,T4,4000,1000\n")
    done = berth("simulate", trace, "--cluster", nodes, "--policy", "fifo")
    assert done.returncode == 0, done.stderr
    assert "7 jobs ask for what no node of this cluster has, even empty: rejected" in done.stderr
    assert "  j1, j3, j5, j7, j9: 9 CPU cores wanted; no such node has more than 4 free\n" in done.stderr
    assert "and 2 more" in done.stderr


@pytest.mark.slow
def test_an_interruption_is_told(tmp_path: Path) -> None:
    (tmp_path / "begun.py").write_text(
        "from pathlib import Path\n\n\nclass Begun:\n    def __init__(self, setting=None):\n        pass\n\n"
        "    def __call__(self, queue, cluster, now_ms):\n        Path('begun').touch()\n        return iter(())\n"
    )
    policies = (
        "genetic?generations=1,begun:Begun,genetic?generations=1000000&patience=1000000"  # loaded by then
    )
    child = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("berth")),
            "experiment",
            "optimality",
            "--count",
            "2",
            "--policies",
            policies,
            "--out",
            str(tmp_path / "o"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    try:
        give_up = time.monotonic() + 300
        while not (tmp_path / "begun").exists() and child.poll() is None and time.monotonic() < give_up:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=300)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, errors
    assert errors.endswith("berth: interrupted\n")
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("then", ["time.sleep(60)", "raise RuntimeError('no compiled object yet')"])
def test_an_interruption_that_a_callback_of_c_code_swallows_is_told(then: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import ctypes, os, signal, time\n\n\n@ctypes.CFUNCTYPE(None)\ndef callback():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    [at for at in range(9)]\n\n\n"
        f"def policy(queue, cluster, now_ms):\n    callback()\n    {then}\n    return iter(())\n"
    )
    command = [str(Path(sys.executable).with_name("berth")), "simulate", "synthetic:demo?jobs=9"]
    done = subprocess.run(
        [*command, "--policy", "own:policy"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.endswith("berth: interrupted\n")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_interruption_after_the_answer_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os\n\nfrom berth.policies import make_policy\n\n\nclass Late:\n"
        "    def __del__(self, kill=os.kill, me=os.getpid()):\n        kill(me, 2)\n\n\n"
        "late = Late()\npolicy = make_policy('fifo')\n\n\n"
        "def decide(queue, cluster, now_ms):\n    return policy(queue, cluster, now_ms)\n"
    )
    command = [str(Path(sys.executable).with_name("berth")), "simulate", "synthetic:demo?jobs=9", "--json"]
    done = subprocess.run(
        [*command, "--policy", "own:decide"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["finished"] == 9


@pytest.mark.parametrize("then", ["print('answer')", "stop_at_the_second()"])
def test_a_command_that_succeeds_after_a_lost_interruption_has_succeeded(then: str) -> None:
    """It was done within the moment before the interruption came again, or ends well when it is interrupted."""
    script = f"""
import ctypes, os, signal, sys, time
from types import ModuleType
import berth.cli

@ctypes.CFUNCTYPE(None)
def callback():
    os.kill(os.getpid(), signal.SIGINT)
    [at for at in range(9)]

def stop_at_the_second():
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("answer")

def app(prog_name):
    callback()
    {then}
    raise SystemExit(0)

sys.modules["berth.cli.app"] = ModuleType("berth.cli.app")
sys.modules["berth.cli.app"].app = app
try:
    berth.cli.main()
finally:
    time.sleep(0.3)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "answer\n", "")


def test_rows_are_checked_against_the_cluster_that_is_named_where_the_trace_brings_none(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "pods.csv"
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time"
    trace.write_text(
        f"{header}\na,1000,1000,1,1000,H9,0,9,1\nb,1000,1000,9,1000,,0,9,1\nc,1000,1000,1,500,V100,0,9,1\n"
    )
    refused = berth("simulate", trace, "--cluster", "10x8:V100")
    assert refused.returncode == 2
    assert "pods.csv, line 2, column 'gpu_spec': 'H9'" in refused.stderr
    done = berth("simulate", trace, "--cluster", "10x8:V100", "--skip-bad", "--json")
    assert json.loads(done.stdout)["runs"][0]["finished"] == 1
    assert [text.split(":")[0] for text in json.loads(done.stdout)["skipped"]] == [
        f"{trace}, line 2, column 'gpu_spec'",
        f"{trace}, line 3, column 'num_gpu'",
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def p(queue, cluster, now_ms):\n    raise KeyError('boom')\n    yield\n",
            "policy fails: KeyError: 'boom' (",
        ),
        (
            "def p(queue, cluster, now_ms):\n    return None\n",
            "the policy returned None; expected it to yield decisions",
        ),
        ("def p(queue, cluster, now_ms):\n    cluster.free.milli[:] = 5\n    yield\n", "read-only"),
        (
            "def p(queue):\n    yield\n",
            "'mine:p': a policy is called with (queue, cluster, now_ms): too many positional arguments",
        ),
        ("def p(:\n", "module 'mine' fails when it is imported: SyntaxError"),
    ],
)
def test_a_policy_of_ones_own_that_fails_is_told_in_one_line(code: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code)
    done = berth("simulate", "synthetic:demo?jobs=20", "--policy", "mine:p", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        done = berth("compare", "synthetic:demo?jobs=20", "--policies", "fifo", "--out", out)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


def test_help_is_there_for_every_command() -> None:
    for command in (
        (),
        ("simulate",),
        ("compare",),
        ("policies",),
        ("experiment", "inflate"),
        ("trace", "describe"),
        ("trace", "convert"),
        ("trace", "fetch"),
        ("trace", "formats"),
    ):
        done = berth(*command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: berth" in done.stdout


def test_every_command_has_a_line_in_the_readme_or_the_docs() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))
    commands = (
        "simulate",
        "compare",
        "policies",
        "experiment inflate",
        "trace describe",
        "trace convert",
        "trace fetch",
    )
    assert [command for command in commands if f"berth {command}" not in text] == []


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ([], 2),
        (["--help"], 0),
        (["-V"], 0),
        (["queue"], 2),
        (["compare", "--help"], 0),
        (["k8s", "--help"], 0),
    ],
)
def test_no_heavy_library_is_loaded_for_help_or_to_ask_the_queue(
    words: list[str], status: int, tmp_path: Path
) -> None:
    code = (
        "import atexit, json, sys; from berth.cli import main\n"
        "heavy = {'numpy', 'numba', 'duckdb', 'plotly', 'jax', 'jinja2', 'textual', 'fastapi', 'asyncio'}\n"
        "atexit.register(lambda: print(json.dumps(sorted(heavy & set(sys.modules))), file=sys.stderr))\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "BERTH_STATE": str(tmp_path)},
    )
    assert (done.returncode, json.loads(done.stderr.splitlines()[-1])) == (status, [])


def test_a_users_policy_is_found_from_where_the_user_stands(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from berth import Placement\n\n\n"
        "def last_node(queue, cluster, now_ms):\n"
        "    for job in queue:\n"
        "        slots = cluster.slots_for(job, cluster.fitting_nodes(job)[::-1])\n"
        "        if slots:\n"
        "            yield Placement(job, slots, job.share)\n"
    )
    done = berth("simulate", "synthetic:demo?jobs=80", "--policy", "mine:last_node", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["runs"][0]["finished"] == 80


RealData = Callable[[str], Path]


def test_openb_is_replayed_on_the_cluster_it_brings(real_data: RealData) -> None:
    result = answer(
        "simulate", real_data("openb_v2023/openb_pod_list_default.csv.gz"), "--policy", "fgd", "--json"
    )
    assert isinstance(result, dict)
    run = result["runs"][0]
    assert result["cluster"] == {"nodes": 1523, "gpus": 6212}
    assert run["jobs"] == 8152
    assert run["finished"] + run["failed"] + run["rejected"] + run["waiting"] + run["running"] == 8152
