"""The edges: slurmrestd on its socket, the nodes' scripts, the watchdog, and the comparison of two logs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import ClassVar

import pytest

from berth.errors import LiveError
from berth.history.importing.sacct import import_text
from berth.history.importing.samples import import_usage
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.live.slurm import node
from berth.live.slurm.controller import Change, Controller
from berth.live.slurm.decisions import Decision, append, attempts_of, compare, decided_ms, read_decisions
from berth.live.slurm.install import shipped
from berth.live.slurm.job_log import measured
from berth.live.slurm.measured_use import Result, keep, taken
from berth.live.slurm.rest import VERSIONS, RestChannel, spoken
from berth.live.slurm.service import owner_of
from tests.live.slurm.fake_slurm import FakeSlurm


class Handler(BaseHTTPRequestHandler):
    """Answers as slurmrestd does: 200 with errors inside, 401 for a token that it does not take."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, dict[str, object]]]] = []
    answers: ClassVar[dict[str, tuple[int, object]]] = {}
    speaks: ClassVar[str] = "v0.0.38"

    def do_GET(self) -> None:
        known = self.path == f"/slurm/{Handler.speaks}/ping"
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        job = self.path.rpartition("/")[2]
        Handler.asked.append((job, body))
        status, answer = Handler.answers.get(job, (200, {"errors": []}))
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def address_string(self) -> str:
        return "client"

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[Path]:
    Handler.asked, Handler.answers, Handler.speaks = [], {}, "v0.0.38"
    with ThreadingUnixStreamServer(str(tmp_path / "rest"), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path / "rest"
        server.shutdown()
        thread.join()


def test_rest_releases_with_node_and_gpu_and_errors_inside_200_are_read(rest: Path) -> None:
    slurm = FakeSlurm()
    for job in ("1", "2", "3", "4_5"):
        slurm.held(job)
    Handler.answers["2"] = (200, {"errors": [{"error": "Requested node configuration is not available"}]})
    changes = [
        Change("1", node_list="node1", gres="gres:gpu:v100_0:1", admin_comment="berth:1;x", hold=False),
        Change("2", node_list="node2", hold=False),
        Change("3", hold=True),
        Change("4_5", node_list="node1", hold=False),  # a task has no number of its own yet
    ]
    assert RestChannel(rest, Controller(slurm), pytest.fail).apply(changes) == {
        "2": "Requested node configuration is not available"
    }
    assert sorted(Handler.asked) == [
        ("1", {"hold": False, "node_list": "node1", "gres": "gres:gpu:v100_0:1"}),
        ("2", {"hold": False, "node_list": "node2"}),
    ]
    # What it cannot say goes through scontrol, before it.
    assert slurm.commands == [
        "hold 3", "update JobId=4_5 ReqNodeList=node1", "update JobId=1 AdminComment=berth:1;x", "release 4_5",
    ]  # fmt: skip


NOT_SET = {"set": False, "infinite": False, "number": 0}
ANSWERS = {
    # As the documents of these versions have them: what follows `errors` and `warnings` differs.
    "v0.0.39": {
        "meta": {"plugin": {"type": "openapi/v0.0.39"}, "Slurm": {"release": "23.02.7"}},
        "errors": [{"error_number": 2014, "error": "Requested node configuration is not available", "description": "",
                    "source": "slurm_update_job2()"}],
        "warnings": [],
    },
    "v0.0.40": {
        "meta": {"plugin": {"data_parser": "data_parser/v0.0.40"}, "slurm": {"release": "23.11.6"}},
        "results": [{"job_id": 2, "step_id": "2", "error": "Requested node configuration is not available",
                     "error_code": 2014, "why": ""}],
        "errors": [], "warnings": [{"description": "an old field", "source": "#/tres_per_node"}],
    },
    "v0.0.43": {
        "meta": {"plugin": {"data_parser": "data_parser/v0.0.43"}, "slurm": {"release": "25.05.1"}},
        "results": [{"job_id": "2", "error": "Requested node configuration is not available",
                     "error_code": {"set": True, "infinite": False, "number": 2014}}],
        "errors": None, "warnings": [],
    },
}  # fmt: skip
GOOD = {
    "results": [{"job_id": 1, "error": "No error", "error_code": 0}, {"job_id": 1, "error_code": NOT_SET}],
    "errors": [], "warnings": [],
}  # fmt: skip


@pytest.mark.parametrize("version", ANSWERS)
def test_rest_speaks_the_version_that_its_slurm_does(rest: Path, version: str) -> None:
    Handler.speaks = version
    slurm = FakeSlurm()
    for job in ("1", "2"):
        slurm.held(job, "gres/gpu:1")
    Handler.answers |= {"1": (200, GOOD), "2": (200, ANSWERS[version])}
    changes = [
        Change("1", node_list="node1,node2", gres="gres/gpu:v100_0:1", hold=False),
        Change("2", node_list="node2", gres="gres/gpu:v100_0:1", hold=False),
    ]
    said: list[str] = []
    channel = RestChannel(rest, Controller(slurm), said.append)
    assert channel.apply(changes) == {"2": "Requested node configuration is not available"}
    wanted = [
        ("1", {"hold": False, "required_nodes": ["node1", "node2"], "tres_per_node": "gres/gpu:v100_0:1"}),
        ("2", {"hold": False, "required_nodes": ["node2"], "tres_per_node": "gres/gpu:v100_0:1"}),
    ]
    assert sorted(Handler.asked, key=lambda each: each[0]) == wanted
    # It is updated, and speaks another version: scontrol does what was asked meanwhile, and then it is asked again.
    Handler.speaks = VERSIONS[0]
    Handler.answers["1"] = (404, {})
    assert channel.apply(changes[:1]) == {}
    assert slurm.commands[-1] == "release 1"
    assert len(said) == 1
    assert spoken(rest) == VERSIONS[0] == "v0.0.45"


def test_a_slurmrestd_of_another_age_is_told_with_what_berth_speaks(rest: Path) -> None:
    Handler.speaks = "v0.0.37"
    with pytest.raises(LiveError, match=r"speaks none of v0\.0\.38, v0\.0\.39, .*v0\.0\.45"):
        spoken(rest)


def test_without_slurmrestd_or_its_token_scontrol_does_the_rest(rest: Path, tmp_path: Path) -> None:
    # As slurmrestd of 22.05 answers to a token that has expired.
    error = {"description": "job update from rest->fd:8 failed", "error_number": 1000, "source": "_parse_job_list",
             "error": "Unexpected message received"}  # fmt: skip
    # And to a shard, if it was started before slurm.conf had any.
    parsing = {"description": "job parsing failed for rest->fd:8", "error_number": 9001}
    expired = "slurmrestd does not take the token; make a new one: export $(scontrol token lifespan=31536000)"
    for path, answer, why in (
        (rest, (401, {}), expired),
        (rest, (500, {"errors": [error]}), "as it does not if the token has expired"),
        (rest, (200, {"errors": [parsing]}), "restart it if slurm.conf was changed since it started"),
        (tmp_path / "nothing", (200, {}), "No such file or directory"),
    ):
        slurm = FakeSlurm()
        slurm.held("1")
        Handler.answers["1"] = answer
        said: list[str] = []
        channel = RestChannel(path, Controller(slurm), said.append)
        assert channel.apply([Change("1", node_list="node1", hold=False)]) == {}
        assert slurm.commands == ["update JobId=1 ReqNodeList=node1", "release 1"]
        channel.apply([Change("1", node_list="node1", hold=False)])
        (told,) = said  # once, not at each look
        assert why in told
        assert told.endswith("; until it answers, scontrol places in its stead, more slowly")


@pytest.mark.parametrize("what", ["prolog", "epilog", "nonsense"])
def test_a_script_of_a_node_never_fails_and_says_what_went_wrong(tmp_path: Path, what: str) -> None:
    words = {
        "PATH": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURM_JOB_UID": "x",
        "BERTH_SLURM_LOG": str(tmp_path / "log"), "BERTH_ROOT": str(tmp_path / "root"),
        "BERTH_SLURM_RUN": str(tmp_path / "run"),
    }  # fmt: skip
    command = [sys.executable, "-m", "berth.live.slurm.node", what]
    assert subprocess.run(command, env=words, check=False).returncode == 0
    if what != "epilog":  # without a partition it has nothing to say
        assert f"{what} of job 7: " in (tmp_path / "log").read_text()


TASK = {
    "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1", "SLURM_JOB_PARTITION": "gpu", "SLURM_LOCALID": "0",
    "BERTH_SLURM_PARTITIONS": "big,gpu", "BERTH_SLURM_QOS": "fast", "CUDA_VISIBLE_DEVICES": "0",
}  # fmt: skip
NO_GPU_LINE = (
    "print berth: node1 made no GPU partition for job 7, so the job gets no GPU there; show this line to your"
    " administrator"
)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ({"SLURM_JOB_GPUS": "0"}, ["export CUDA_VISIBLE_DEVICES=", NO_GPU_LINE]),
        ({"SLURM_STEP_GPUS": "1"}, ["export CUDA_VISIBLE_DEVICES=", NO_GPU_LINE]),
        ({"SLURM_STEP_GPUS": "1", "SLURM_LOCALID": "3"}, ["export CUDA_VISIBLE_DEVICES="]),
        ({"SLURM_JOB_GPUS": "0", "SLURM_JOB_PARTITION": "cpu", "SLURM_JOB_QOS": "fast"},
         ["export CUDA_VISIBLE_DEVICES=", NO_GPU_LINE]),
        ({"SLURM_JOB_GPUS": "0", "SLURM_JOB_PARTITION": "gp", "SLURM_JOB_QOS": "fas"}, []),
        ({"SLURM_JOB_GPUS": "0", "SLURM_JOB_PARTITION": "gpu", "BERTH_SLURM_PARTITIONS": ""}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_without_a_partition_a_job_of_berths_gets_no_gpu_and_others_keep_theirs(
    tmp_path: Path, words: dict[str, str], printed: list[str]
) -> None:
    (tmp_path / "logger").write_text("#!/bin/sh\n")
    (tmp_path / "logger").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {"PATH": path, "BERTH_SLURM_RUN": str(tmp_path), **TASK, **words}
    command = ["bash", "-c", shipped("task_prolog.sh")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (ran.stdout.splitlines(), ran.stderr) == (printed, "")
    # With one it gets what was handed in, and keeps its GPUs.
    (tmp_path / "7-node1").write_text("BERTH_REGION=/r\n")
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["export BERTH_REGION=/r"]


def test_a_prolog_that_fails_hands_in_nothing_and_berth_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "3", "SLURM_JOB_UID": "0", "SLURMD_NODENAME": "node1",
        "SLURM_JOB_PARTITION": "gpu", "BERTH_SLURM_PARTITIONS": "gpu", "BERTH_SLURM_RUN": str(tmp_path / "run"),
        "BERTH_SLURM_RESULTS": str(tmp_path / "results"),
    }  # fmt: skip
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "7-node1").write_text("BERTH_REGION=/of/an/attempt/before\n")
    monkeypatch.setattr(node, "_by_minor", lambda driver: {})
    with pytest.raises(
        LiveError, match=r"NVML knows no /dev/nvidia3, which Slurm gave the job; there are no GPUs"
    ):
        node.prolog(words)
    assert list((tmp_path / "run").iterdir()) == []
    assert taken(tmp_path / "results", {"7"}) == {"7": Result("7", "node1", 0, 0, 0, closed=True)}
    with pytest.raises(LiveError, match="NVML knows no"):
        node.prolog(words | {"SLURM_JOB_PARTITION": "of the site"})
    assert taken(tmp_path / "results", {"7"}) == {}
    with pytest.raises(LiveError, match="NVML knows no"):
        node.prolog(words | {"SLURM_JOB_PARTITION": "of the site", "BERTH_SLURM_QOS": "fast"})
    assert taken(tmp_path / "results", {"7"})["7"].closed


@pytest.mark.parametrize(
    ("code", "says"), [(0, ""), (3, "berth: prolog of job 7: it ended with 3; 124 means")]
)
def test_a_prolog_that_is_killed_is_told_in_the_log_of_the_node(tmp_path: Path, code: int, says: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexit {code}\n")
    python.chmod(0o755)
    script = shipped("prolog.sh").replace("@PYTHON@", str(python)).replace("@SLURM_BIN@", "/usr/bin")
    log = tmp_path / "log"
    words = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "BERTH_SLURM_LOG": str(log)}
    subprocess.run(["bash", "-c", script], env=words, check=True)
    assert says in (log.read_text() if log.exists() else "")
    assert log.exists() == bool(says)


def test_results_of_several_nodes_are_one_and_are_read_once(tmp_path: Path) -> None:
    keep(tmp_path, Result("7", "node1", 100, 1, 150))
    keep(tmp_path, Result("7", "node2", 300, 2, 0, closed=True))
    keep(tmp_path, Result("8", "node1", 5, 0, 0))
    (tmp_path / "7-broken").write_text("half")
    assert taken(tmp_path, {"7"}) == {"7": Result("7", "node2", 300, 3, 150, closed=True)}
    assert taken(tmp_path, {"7"}) == {}
    assert taken(tmp_path / "none", {"7"}) == {}


def watchdog(folder: Path, silent_s: int, rows: str, fails: str = "nothing", nodes: str = "") -> list[str]:
    """Run the watchdog between a squeue that prints rows and a scontrol that writes down what it is told."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "rows").write_text(rows)
    scripts = {
        # It prints as many fields as it is asked for.
        "squeue": f'[ "$(echo "$6" | tr -cd , | wc -c)" = 7 ] && cat "{folder}/rows"\n',
        "scontrol": f'[ "$4" != node ] || {{ echo "{nodes}"; exit; }}\n'
        f'echo "$*" >>"{folder}/told"\ncase "$*" in *{fails}*) exit 1 ;; esac\n',
    }
    for name, text in scripts.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
    script = folder / "watchdog.sh"
    script.write_text(shipped("watchdog.sh"))
    status = folder / "status.json"
    status.write_text("{}")
    os.utime(status, (os.stat(status).st_mtime - silent_s,) * 2)
    (folder / "told").write_text("")
    words = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["bash", script, "300", str(folder)], env=words, check=True, capture_output=True)
    return (folder / "told").read_text().splitlines()


def held(
    job: str,
    note: str,
    placed: str = "",
    submitted: int = 1000,
    partition: str = "gpu",
    reason: str = "JobHeldAdmin",
    number: str = "",
) -> str:
    return "\x1f".join((job, number or job, str(submitted), partition, "normal", placed, note, reason)) + "\n"


def test_the_watchdog_gives_back_what_berth_holds_where_berth_is_silent(tmp_path: Path) -> None:
    note = "berth:1;node=gres:gpu:1;job=;task=gres:gpu:2;share=500:10:1"
    rows = held("7", note) + held("8_[1-9%2]", "berth:1;node=;job=gres:gpu:4;task=")
    rows += held("9", "of the site") + held("10", "") + held("11", note, submitted=99_999_999_999)
    rows += held("12", f"ticket 12; see {note}")
    (tmp_path / "scope").write_text("partition gpu\n")
    assert watchdog(tmp_path, 10, rows) == []
    assert watchdog(tmp_path, 400, rows) == [
        "update JobId=7 ReqNodeList= TresPerNode=gres:gpu:1 TresPerTask=gres:gpu:2", "release 7",
        "update JobId=7 AdminComment=berth:0;",
        "update JobId=8_[1-9] TresPerJob=gres:gpu:4", "release 8_[1-9]",
        "update JobId=8_[1-9] AdminComment=berth:0;",
        "update JobId=12 ReqNodeList= TresPerNode=gres:gpu:1 TresPerTask=gres:gpu:2", "release 12",
        "update JobId=12 AdminComment=berth:0;",
    ]  # fmt: skip


def test_the_watchdog_gives_back_what_a_berth_that_lives_does_not_place(tmp_path: Path) -> None:
    note = "berth:1;node=gres:gpu:1;job=;task="
    rows = held("7", note) + held("8", note, partition="other")
    rows += held("9", note, partition="other", reason="job requeued in held state")
    given = [
        line
        for job in "89"
        for line in (
            f"update JobId={job} ReqNodeList= TresPerNode=gres:gpu:1", f"release {job}",
            f"update JobId={job} AdminComment=berth:0;",
        )
    ]  # fmt: skip
    (tmp_path / "scope").write_text("partition gpu\n")
    assert watchdog(tmp_path, 10, rows) == given
    (tmp_path / "scope").write_text("partition gpu\npartition other\n")
    assert watchdog(tmp_path, 10, rows) == []
    (tmp_path / "scope").unlink()  # it advises
    assert len(watchdog(tmp_path, 10, rows)) == 9


def test_the_watchdog_leaves_jobs_to_a_berth_of_another_machine_that_lives(tmp_path: Path) -> None:
    rows = held("7", "berth:1;node=gres:gpu:1;job=;task=")
    node = "NodeName=node1 State=IDLE Comment=[berth places: {} until {}] Extra=x"
    assert watchdog(tmp_path, 400, rows, nodes=node.format("other:/x", 99_999_999_999)) == []
    assert len(watchdog(tmp_path, 400, rows, nodes=node.format("other:/x", 1000))) == 3
    assert len(watchdog(tmp_path, 400, rows, nodes=node.format(owner_of(tmp_path), 99_999_999_999))) == 3


def test_the_watchdog_knows_its_own_folder_by_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a b%c\u00e9"
    folder.mkdir()
    comment = f"[berth places: {owner_of(folder)} until 99999999999]"
    rows = held("7", "berth:1;node=gres:gpu:1;job=;task=")
    assert len(watchdog(folder, 400, rows, nodes=f"NodeName=node1 Comment={comment} Extra=x")) == 3


def test_two_watchdogs_at_once_are_one(tmp_path: Path) -> None:
    with open(tmp_path / "watchdog.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert watchdog(tmp_path, 400, held("7", "berth:1;node=gres:gpu:1;job=;task=")) == []


def test_the_watchdog_never_releases_a_job_without_a_gpu(tmp_path: Path) -> None:
    note = "berth:1;node=gres:gpu:1;job=;task="
    told = watchdog(tmp_path, 400, held("7", note), fails="TresPerNode")
    assert told == ["update JobId=7 ReqNodeList= TresPerNode=gres:gpu:1"]
    # Nor one of which nobody would know any more, when its release has failed.
    told = watchdog(tmp_path, 400, held("7", note), fails="release")
    assert told == ["update JobId=7 ReqNodeList= TresPerNode=gres:gpu:1", "release 7"]
    told = watchdog(tmp_path, 400, held("7", note, placed="gres:shard:v100_0:2"))
    assert told == ["update JobId=7 ReqNodeList=", "release 7", "update JobId=7 AdminComment=berth:0;"]


def test_the_watchdog_releases_a_heterogeneous_job_when_all_components_have_their_gpus(
    tmp_path: Path,
) -> None:
    note = "berth:1;node={};job=;task=;part={}"
    rows = held("7+0", note.format("", 0), number="7") + held("9", note.format("gres:gpu:1", 0))
    rows += held("7+1", note.format("gres:gpu:2", 1), number="8")
    own = [
        "update JobId=9 ReqNodeList= TresPerNode=gres:gpu:1",
        "release 9",
        "update JobId=9 AdminComment=berth:0;",
    ]
    component = "update JobId=8 ReqNodeList= TresPerNode=gres:gpu:2"
    assert watchdog(tmp_path, 400, rows) == [
        *own, component, "update JobId=7 ExcNodeList=", "release 7",
        "update JobId=7 AdminComment=berth:0;", "update JobId=8 AdminComment=berth:0;",
    ]  # fmt: skip
    assert watchdog(tmp_path, 400, rows, fails="JobId=8") == [*own, component]
    (tmp_path / "scope").write_text("partition other\n")
    rows = held("7+0", note.format("", 0), number="7")
    rows += held("7+1", note.format("gres:gpu:2", 1), number="8", partition="other")
    assert watchdog(tmp_path, 10, rows) == [], "the berth that holds one of them gives all back"


def test_waits_stand_side_by_side_and_a_requeued_job_has_two_attempts(tmp_path: Path) -> None:
    lines = [
        Decision(11_000, "advised", "1", submit_ms=10_000, policy="p", where="n:0"),
        Decision(15_000, "advised", "1", submit_ms=10_000),  # only the first counts
        Decision(21_000, "started", "1", "1", submit_ms=10_000, start_ms=20_000, gpus=1),
        Decision(30_000, "ended", "1", "1", end_ms=30_000, state="NODE_FAIL"),
        Decision(41_000, "started", "1", "1", submit_ms=10_000, start_ms=40_000, gpus=1),
        Decision(50_000, "ended", "1", "1", end_ms=50_000, state="COMPLETED"),
    ]
    append(tmp_path / "log", lines)
    with open(tmp_path / "log", "ab") as file:
        file.write('{"at_ms":5,"user":"é'.encode()[:-1])  # a crash cut it off
    assert list(read_decisions(tmp_path / "log")) == lines
    attempts = list(attempts_of(lines))
    assert [(each.start, each.end) for each in attempts] == [(lines[2], lines[3]), (lines[4], lines[5])]
    assert [decided_ms(each) for each in attempts] == [11_000, None]
    found = compare(lines, gpus=2)
    assert (found.jobs, found.slurm_wait_mean_s, found.berth_wait_mean_s, found.earlier, found.never) == (
        2,
        10,
        1,
        1,
        1,
    )
    assert found.slurm_use == pytest.approx(20 / 80)


def test_what_epilogs_measured_goes_to_the_accountings_record_of_the_same_job(tmp_path: Path) -> None:
    lines = []
    for job in ("1", "2"):
        lines += [
            Decision(1_000, "placed", job, job, submit_ms=1_000, where="n:0", policy="p"),
            Decision(6_000, "started", job, job, submit_ms=1_000, start_ms=5_000, gpus=1, milli=500, where="n:0"),
            Decision(
                25_000, "ended", job, job, start_ms=5_000, end_ms=25_000, state="COMPLETED", where="n",
                peak_mib=300, card_mib=1000,
            ),
        ]  # fmt: skip
    store = open_history(tmp_path / "h")
    sacct = (
        "Cluster|JobIDRaw|JobID|User|State|Submit|Start|End|ExitCode|AllocTRES|NodeList|NNodes\n"
        "c|1|1|ann|COMPLETED|1970-01-01T00:00:01|1970-01-01T00:00:05|1970-01-01T00:00:25|0:0|cpu=1,gres/gpu=1|n|1\n"
    )
    (tmp_path / "sacct").write_text(sacct)
    import_text(store, tmp_path / "sacct", Options(timezone="UTC"))
    import_usage(store, measured(lines))
    (record,) = store.records()
    assert (record.gpu_mem_peak, record.gpu_use_mean) == (0.3, None)


def test_services_that_end_start_again_after_a_pause_and_without_end() -> None:
    for unit in ("berth-slurm.service", "berth-slurm-agent.service"):
        rules = [line for line in shipped(unit).splitlines() if line.startswith(("Restart", "StartLimit"))]
        assert rules == ["Restart=always", "RestartSec=5"], "systemd gives up after 5 starts in 10 s"
