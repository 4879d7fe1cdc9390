"""A node's agent beside Slurm: Prolog, Epilog and commands as Slurm calls them, real programs on a fake card."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from berth.errors import LiveError, PartitionError
from berth.live.driver.node_tenants import Shown
from berth.live.kubernetes.node.growing import memory_of as of_pod
from berth.live.slurm import agent
from berth.live.slurm import node as script
from berth.live.slurm.agent import (
    BY_AGENT,
    BY_USER,
    Reports,
    memory_text,
    order,
    orders,
    reports,
    resume,
    revoke,
    suspend,
)
from berth.live.slurm.controller import Controller
from berth.live.slurm.measured_use import taken
from berth.live.slurm.requests import Cards, memory_of
from berth.live.slurm.snapshot import snapshot_of
from berth.partition import fake_driver_folder, partitions
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.partition.test_reconciling import forge, write

JOB = Path(__file__).parents[1] / "local" / "growing_job.py"
LIMIT_S = 600.0
SQUEUE = """#!{python}
import json, sys
job = json.load(open("{folder}/" + sys.argv[sys.argv.index("-j") + 1] + ".job"))
print("".join(job.get(name, "") + mark for name, _, mark in (each.partition(":") for each in sys.argv[-1].split(","))))
"""


class Slurm(FakeSlurm):
    """One that suspends, too."""

    def __call__(self, words: Sequence[str], lines: str) -> str:
        if words[1:2] in (["suspend"], ["resume"]):
            line = " ".join(words[1:])
            self.commands.append(line)
            if line in self.refuses:
                raise LiveError(self.refuses[line])
            self.jobs[words[2]]["State"] = "SUSPENDED" if words[1] == "suspend" else "RUNNING"
            return ""
        return super().__call__(words, lines)


class Node:
    """node1: its Slurm calls the Prolog and the Epilog, and berth's agent runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.slurm = folder, folder / "state", Slurm()
        self.words = {
            "PATH": f"{folder}:{os.environ['PATH']}", "BERTH_ROOT": str(folder / "root"),
            "BERTH_FAKE_CARD": str(folder / "card"), "BERTH_SLURM_FAKE_GPU": "1",
            "BERTH_SLURM_LOG": str(folder / "log"), "BERTH_SLURM_RUN": str(folder / "run"),
            "BERTH_SLURM_RESULTS": str(self.state / "results"), "SLURMD_NODENAME": "node1",
            "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_GPUS": "0",
        }  # fmt: skip
        squeue = folder / "squeue"
        squeue.write_text(SQUEUE.format(python=sys.executable, folder=folder))
        squeue.chmod(0o755)
        self.jobs: dict[str, subprocess.Popen[str]] = {}
        self.agent: subprocess.Popen[bytes] | None = None

    def up(self, grow: str = "on", uncounted: str = "report") -> None:
        berth = [str(Path(sys.executable).parent / "berth"), "slurm", "agent", "--state", str(self.state)]
        self.agent = subprocess.Popen(
            [*berth, "--grow", grow, "--uncounted", uncounted, "--node", "host1"], env=self.words
        )
        self.until(lambda: (self.state / "agents" / "host1").exists(), "the agent reports")

    def job(self, job_id: str, *words: object, mib: int, comment: str = "", unkind: str = "") -> None:
        """Have Slurm start a job that berth gave so much memory."""
        self.place(job_id, mib, comment)
        self._script("prolog", job_id)
        handed = (self.folder / "run" / f"{job_id}-node1").read_text().splitlines()
        given = dict(line.partition("=")[::2] for line in handed) | {"BERTH_FAKE_CHECKPOINT": unkind}
        command = [sys.executable, str(JOB), *map(str, words)]
        environment = {**os.environ, **self.words, **given}
        self.jobs[job_id] = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE)
        self.slurm.held(job_id)
        self.slurm.jobs[job_id] |= {"State": "RUNNING", "NodeList": "node1", "StartTime": "2000"}

    def place(self, job_id: str, mib: int, comment: str = "") -> None:
        """Have squeue show a job that berth gave so much memory."""
        note = f"berth:1;node=gres:gpu:1;job=;task=;share=250:{mib}:1"
        row = {
            "JobID": job_id,
            "admin_comment": note,
            "Comment": comment,
            "PriorityLong": "100",
            "Name": "notebook",
        }
        (self.folder / f"{job_id}.job").write_text(json.dumps(row))

    def _script(self, what: str, job_id: str) -> None:
        words = {**os.environ, **self.words, "SLURM_JOB_ID": job_id}
        subprocess.run([sys.executable, "-m", "berth.live.slurm.node", what], env=words, check=True)

    def ends(self, job_id: str) -> tuple[int, list[str]]:
        said, _ = self.jobs[job_id].communicate(timeout=LIMIT_S)
        self._script("epilog", job_id)
        return self.jobs.pop(job_id).returncode, said.splitlines()

    def until(self, true: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not true():
            log = self.folder / "log"
            said = log.read_text()[-3000:] if log.exists() else ""
            assert time.monotonic() < end_s, (
                f"not within {LIMIT_S:g} s: {what}; {reports(self.state)}\n{said}"
            )
            time.sleep(0.02)

    def until_is(self, job_id: str, **wanted: object) -> None:
        def there() -> bool:
            found = reports(self.state).get(job_id)
            return found is not None and wanted.items() <= found.by_node["node1"]._asdict().items()

        self.until(there, f"job {job_id} is {wanted}")

    def close(self) -> None:
        for process in self.jobs.values():
            process.kill()
            process.communicate()
        if self.agent is not None:
            self.agent.terminate()
            assert self.agent.wait(LIMIT_S) == 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    fake_driver_folder()
    made = Node(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("comment", "sizes"),
    [
        ("pytorch gpu_mem=4G..20G gpu_pct=30", (4096, 20480)),
        ("gpu_mem=4G", (4096, 0)),
        ("gpu_mem=4G..much", (0, 0)),
        ("resnet", (0, 0)),
    ],
)
def test_a_comment_says_what_a_job_needs_and_how_far_that_may_grow(
    comment: str, sizes: tuple[int, int]
) -> None:
    assert memory_of(comment) == sizes


def test_memory_grows_beside_slurm_and_the_snapshot_shows_it(node: Node) -> None:
    node.up("off")
    node.job("7", 3000, 3000, node.folder / "go", mib=4096, comment="app gpu_mem=4G..8G")
    node.until_is("7", used_mib=6000, promise_mib=4096, max_mib=8192, granted=1)
    controller = Controller(node.slurm)
    node.slurm.used["node1"] = "gpu:v100_0:1(IDX:0)"
    seen = snapshot_of(controller.nodes(), controller.jobs(), node.state, Cards({"v100": 16384}))
    (tenant,) = (each for gpu in seen.gpus for each in gpu.tenants)
    assert (tenant.promise_mib, tenant.max_mib, tenant.used_mib, tenant.granted) == (4096, 8192, 6000, 1)
    (shown,) = reports(node.state)["7"].by_node.values()
    assert memory_text(shown).startswith("promised 4G of each GPU, may hold 6G now and 8G at most")
    (node.folder / "go").touch()
    assert node.ends("7") == (0, ["holds 3000", "holds 3000"])
    assert taken(node.state / "results", {"7"})["7"].peak_mib == 6000


@pytest.mark.slow
def test_a_suspended_job_frees_its_gpu_is_stopped_by_slurm_and_runs_on(node: Node) -> None:
    node.up()
    node.job("7", 3000, node.folder / "go", mib=4096)
    node.until_is("7", used_mib=3000)
    controller = Controller(node.slurm)
    assert suspend(controller, node.state, "7") == ""
    assert node.slurm.jobs["7"]["State"] == "SUSPENDED"
    assert orders(node.state) == {"7": BY_USER}
    assert suspend(controller, node.state, "7") == ""  # as after a kill
    node.until_is("7", suspension="suspended", parked_mib=3000)
    away, report = node.folder / "away", node.state / "agents" / "host1"
    (node.state / "orders").rename(away)  # as where the shared folder has gone
    report.unlink()
    node.until(report.exists, "the agent has reported again")
    assert reports(node.state)["7"].by_node["node1"].suspension == "suspended"
    away.rename(node.state / "orders")
    resume(controller, node.state, "7")
    node.until_is("7", suspension="")
    (node.folder / "go").touch()
    assert node.ends("7") == (0, ["holds 3000"])
    assert node.slurm.commands == ["suspend 7", "resume 7"]


def test_a_job_that_slurm_has_stopped_leaves_its_gpu_too(node: Node) -> None:
    node.up()
    node.job("7", 3000, node.folder / "go", mib=4096)
    node.until_is("7", used_mib=3000)
    controller = Controller(node.slurm)
    node.jobs["7"].send_signal(signal.SIGSTOP)
    node.slurm.jobs["7"]["State"] = "SUSPENDED"
    assert suspend(controller, node.state, "7") == ""
    node.until_is("7", suspension="suspended", parked_mib=3000)
    node.jobs["7"].send_signal(signal.SIGCONT)  # as Slurm does for `scontrol resume`
    resume(controller, node.state, "7")
    node.until_is("7", suspension="")
    (node.folder / "go").touch()
    assert node.ends("7") == (0, ["holds 3000"])
    assert node.slurm.commands == ["resume 7"]


@pytest.mark.slow
def test_slurm_that_does_not_stop_a_job_leaves_its_gpu_free_and_that_is_said(node: Node) -> None:
    node.up()
    node.job("7", 3000, node.folder / "go", mib=4096)
    node.until_is("7", used_mib=3000)
    node.slurm.refuses["suspend 7"] = "Access/permission denied"
    assert "time limit goes on: Access/permission denied" in suspend(Controller(node.slurm), node.state, "7")
    resume(Controller(node.slurm), node.state, "7")
    (node.folder / "go").touch()
    assert node.ends("7")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("uncounted", ["report", "throttle", "suspend"])
def test_a_job_that_holds_more_than_it_counts_is_reported_throttled_or_suspended(
    node: Node, uncounted: str
) -> None:
    node.up(uncounted=uncounted)
    node.job("7", 3000, node.folder / "go", mib=4096)
    node.until_is("7", used_mib=3000, uncounted="")
    (part,) = partitions(node.folder / "root")
    (use,) = part.folder.glob("*.use")
    places = forge(use, part.used_bytes)

    def text() -> str:
        found = reports(node.state).get("7")
        return memory_text(found.by_node["node1"]) if found is not None else ""

    if uncounted == "suspend":
        node.until(lambda: orders(node.state) == {"7": BY_AGENT}, "it has left, until its user resumes it")
        node.until(lambda: re.search("; suspended, with .* it held ", text()), "why says so")
        write(use, places, part.used_bytes)  # it mends its ways
        resume(Controller(node.slurm), node.state, "7")
    elif uncounted == "throttle":
        node.until(lambda: partitions(node.folder / "root")[0].core_pct == 5, "it is throttled")
        node.until(lambda: text().endswith("; it is left 5 % of the time"), "why says so")
        write(use, places, part.used_bytes)
        node.until(lambda: partitions(node.folder / "root")[0].core_pct == part.core_pct, "it has its share")
    else:
        node.until(lambda: text().endswith(" or wrote into the counters"), "why says so")
        assert partitions(node.folder / "root")[0].core_pct == part.core_pct
        write(use, places, part.used_bytes)
    node.until_is("7", suspension="", uncounted="")
    assert (orders(node.state), node.slurm.commands) == ({}, [])
    (node.folder / "go").touch()
    assert node.ends("7") == (0, ["holds 3000"])


@pytest.mark.slow
def test_a_job_that_cannot_leave_on_all_its_nodes_runs_on_and_is_throttled(node: Node) -> None:
    node.up(uncounted="suspend")
    node.job("7", 3000, node.folder / "go", mib=4096)
    node.until_is("7", used_mib=3000)
    (part,) = partitions(node.folder / "root")
    (use,) = part.folder.glob("*.use")
    forge(use, part.used_bytes)
    node.until(lambda: orders(node.state) == {"7": BY_AGENT}, "it has left node1")
    stays = Shown("7-node2", (0,), 4096, 4096, 4096, 0, 0, 0, 0, "", None, 0, "process 1 cannot be stopped")
    (node.state / "agents" / "host2").write_text(json.dumps([stays._asdict()]))
    node.until(lambda: partitions(node.folder / "root")[0].core_pct == 5, "it is throttled")
    node.until_is("7", suspension="")
    assert orders(node.state) == {}
    (node.folder / "go").touch()
    assert node.ends("7") == (0, ["holds 3000"])


class Away:
    """A node's only tenant, which its agent has suspended by itself; the agent ends after three looks."""

    def __init__(self, *_: object, **__: object) -> None:
        self.id, self.job, self.suspension = "p", "7-node1", "suspended"
        self.uncounted, self.sent_away = "it held more", True
        self.wanted: list[object] = []

    def tenants(self) -> list[Away]:
        return [self]

    def shown(self) -> list[Shown]:
        return []

    def suspend(self, name: str) -> None:
        heard.append(f"suspend {name}")
        self.sent_away = False

    def resume(self, name: str) -> None:
        heard.append(f"resume {name}")

    def look(self) -> None:
        heard.append("look")
        if heard.count("look") == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        """Nothing is held."""


heard: list[str] = []


def test_a_job_that_the_agent_suspended_stays_away_though_orders_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = iter([list[Path]()])

    def listed(_: Path) -> list[Path]:
        for found in lists:
            return found
        raise OSError("NFS is away")

    heard.clear()
    monkeypatch.setattr(agent, "NodeTenants", Away)
    monkeypatch.setattr(agent, "gpus", lambda _: [])
    monkeypatch.setattr(agent, "_listed", listed)
    asyncio.run(agent.serve(tmp_path, "host1", "on", "suspend", lambda *_, **__: None))
    assert heard == ["resume p", "look", "suspend p", "suspend p", "look", "suspend p", "look"]


@pytest.mark.slow
def test_a_suspension_is_given_up_when_the_agent_has_died(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.up()
    node.job("7", 3000, node.folder / "go", mib=4096)
    node.until_is("7", used_mib=3000)
    assert node.agent is not None
    node.agent.kill()
    node.agent.wait(LIMIT_S)
    node.agent = None
    monkeypatch.setattr("berth.live.slurm.agent.SILENT_S", 1.0)
    reported = (node.state / "agents" / "host1").stat().st_mtime
    os.utime(node.state / "agents" / "host1", (reported + 3600, reported + 3600))  # seen as it begins
    begins = order

    def ordered(state: Path, raw_id: str, by: str) -> None:
        begins(state, raw_id, by)
        os.utime(state / "agents" / "host1", (reported - 3600, reported - 3600))

    monkeypatch.setattr("berth.live.slurm.agent.order", ordered)
    with pytest.raises(
        LiveError,
        match=r"agent on node1 has not reported it for 1 s\. If the job has not ended, it runs on\.",
    ):
        suspend(Controller(node.slurm), node.state, "7")
    assert (orders(node.state), node.slurm.commands) == ({}, [])
    (node.folder / "go").touch()
    assert node.ends("7")[0] == 0


@pytest.mark.slow
def test_one_that_the_driver_does_not_move_runs_on_and_nothing_is_ordered(node: Node) -> None:
    node.up()
    node.job("7", 3000, node.folder / "go", mib=4096, unkind="no-lock")
    node.until_is("7", used_mib=3000)
    with pytest.raises(LiveError, match=r"job 7 cannot be suspended: node1: process \d+ cannot be stopped"):
        suspend(Controller(node.slurm), node.state, "7")
    assert (orders(node.state), node.slurm.commands) == ({}, [])
    (node.folder / "go").touch()
    assert node.ends("7")[0] == 0


@pytest.mark.parametrize(
    ("parts", "idle"),
    [
        ([("suspended", True), ("suspended", True)], True),
        ([("suspended", True), ("suspended", False)], False),
        ([("suspended", True), ("resuming", True)], False),
        ([("suspended", True), ("", False)], False),
    ],
)
def test_a_job_lends_its_memory_only_while_all_its_parts_are_away_and_idle(
    parts: list[tuple[str, bool]], idle: bool
) -> None:
    shown = [
        Shown("7-n", (0,), 0, 0, 0, 0, 0, 0, 0, suspension, 1, 0, "", is_idle)
        for suspension, is_idle in parts
    ]
    assert Reports(dict(zip(("n1", "n2"), shown, strict=True))).idle is idle
    assert of_pod(shown).idle is idle


def test_a_job_has_left_only_when_all_its_nodes_say_so() -> None:
    gone = Shown("7-node1", (0,), 0, 0, 0, 0, 0, 0, 0, "suspended", 1, 0, "")
    assert Reports({"node1": gone}).suspended(["node1"])
    assert not Reports({"node1": gone}).suspended(["node1", "node2"])
    assert not Reports({}).suspended(["node1"])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"State": "PENDING"}, "job 7 is PENDING; only a running job"),
        ({}, "no agent of berth runs there; start one with: berth slurm agent"),
    ],
)
def test_what_cannot_be_suspended_is_refused_with_what_to_do(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    slurm = Slurm()
    slurm.held("7")
    slurm.jobs["7"] |= {"State": "RUNNING", "NodeList": "node1", **changed}
    with pytest.raises(LiveError, match=why):
        suspend(Controller(slurm), tmp_path, "7")
    with pytest.raises(LiveError, match="Slurm knows no job 8"):
        resume(Controller(slurm), tmp_path, "8")
    with pytest.raises(
        LiveError, match="Slurm knows no job abc; name one as squeue shows it: 12, 12_3 or 12"
    ):
        resume(Controller(slurm), tmp_path, "abc")


def test_a_job_has_its_gpu_before_the_agent_is_waited_for_and_none_if_that_fails(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in node.words.items():
        monkeypatch.setenv(name, value)
    node.place("7", 4096)
    words, handed = {**os.environ, "SLURM_JOB_ID": "7"}, node.folder / "run" / "7-node1"
    seen: list[bool] = []
    monkeypatch.setattr(script, "admit", lambda *_: seen.append(handed.exists()))
    script.prolog(words)
    assert (seen, len(partitions())) == ([True], 1)

    def fails(*_: object) -> None:
        raise PartitionError("it is gone")

    monkeypatch.setattr(script, "admit", fails)
    with pytest.raises(PartitionError, match="it is gone"):
        script.prolog(words)
    assert (handed.exists(), partitions()) == (False, [])


@pytest.mark.parametrize(
    ("comment", "leaves"), [("gpu_mem=4G gpu_interactive=yes", True), ("gpu_interactive=no", False)]
)
def test_a_comment_lets_a_job_leave_while_it_idles(
    node: Node, monkeypatch: pytest.MonkeyPatch, comment: str, leaves: bool
) -> None:
    for name, value in node.words.items():
        monkeypatch.setenv(name, value)
    node.place("7", 4096, comment)
    script.prolog({**os.environ, "SLURM_JOB_ID": "7"})
    kept = json.loads((node.folder / "root" / "slurm-7-node1" / "tenant").read_text())
    assert (kept["interactive"], kept["application"]) == (leaves, f"{os.getuid()} notebook")


def test_an_end_takes_the_order_along_so_that_the_next_attempt_runs(node: Node) -> None:
    order(node.state, "7", BY_USER)
    node.job("7", 3000, mib=4096)
    assert node.ends("7")[0] == 0
    assert orders(node.state) == {}
    revoke(node.state, "7")


def test_an_order_that_the_agent_writes_during_the_epilog_is_taken_along(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in node.words.items():
        monkeypatch.setenv(name, value)
    node.place("7", 4096)
    words = {**os.environ, "SLURM_JOB_ID": "7"}
    script.prolog(words)
    withdraws = script.withdraw

    def meanwhile(name: str) -> None:
        order(node.state, "7", BY_AGENT)
        withdraws(name)

    monkeypatch.setattr(script, "withdraw", meanwhile)
    script.epilog(words)
    assert (orders(node.state), partitions()) == ({}, [])
