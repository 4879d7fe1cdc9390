"""The sources: a real broker of this machine, and Slurm and Kubernetes as their programs tell them."""

from __future__ import annotations

import json
import os
import pwd
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from berth.console.roles import Role, Viewer
from berth.console.source import Output
from berth.console.sources import local
from berth.console.sources.kubernetes import KubernetesSource
from berth.console.sources.local import LocalSource
from berth.console.sources.slurm import SlurmSource
from berth.errors import AccessError, KubernetesError, LiveError, SettingError
from berth.live.driver.snapshot import LiveJob, Snapshot
from tests.live.local.world import World
from tests.live.slurm.fake_slurm import FakeSlurm

OLGA = Viewer("olga", Role.OPERATOR, "token", "")
NOBODY = Viewer("nobody", Role.USER, "token", "")


def test_this_machines_queue_is_shown_changed_and_missed(tmp_path: Path) -> None:
    world = World()
    try:
        source = LocalSource(Path(world.places.socket))
        with pytest.raises(LiveError, match="no queue is up"):
            source.look()
        world.up()
        first = world.submit("echo hello; sleep 60", gpus=2, name="first")
        world.until(lambda: world.state_of(first) == "running", "it runs")
        second = world.submit("sleep 60", gpus=1)
        look = source.look()
        assert [[each.job for each in gpu.tenants] for gpu in look.gpus] == [[first], [first]]
        assert [(job.id, job.state, job.name) for job in look.jobs] == [
            (first, "running", "first"),
            (second, "waiting", "sh -c sleep 60"),
        ]
        assert (look.waiting, look.running) == (1, 1)

        world.until(lambda: world.output(first) == "hello\n", "it has written")
        mine = source.job(first, OLGA, look)
        assert (mine["output"], "echo hello" in mine["command"]) == ("hello", True)
        others = source.job(first, NOBODY, look)
        assert (others["output"], others["command"], others["name"]) == (None, None, "")
        assert (mine["application"], others["application"]) == ("first", "")  # which is its name
        written = source.output(first, OLGA, None)
        assert written == Output("hello\n", 6, 0, ended=False)
        with pytest.raises(AccessError, match="and operators see the output of job"):
            source.output(first, NOBODY, None)
        assert source.job(second, OLGA, look)["why"][0].startswith(f"Job {second} has")

        with pytest.raises(AccessError, match="may change only their own"):
            source.act("cancel", {"id": second}, NOBODY)
        assert source.act("hold", {"id": second}, OLGA) == f"job {second}: held"
        assert source.act("priority", {"id": second, "value": 7}, OLGA).startswith(f"job {second}")
        assert world.job(second)["priority"] == 7
        assert source.output(second, OLGA, 0) == Output("", 0, 0, ended=False)  # not begun
        source.act("cancel", {"id": second}, OLGA)
        assert source.output(second, OLGA, None) == Output("", 0, 0, ended=True)  # it wrote nothing
        assert source.act("requeue", {"id": second}, OLGA) == f"job {second}: waiting"
        drained = source.act("drain", {"id": f"{look.gpus[1].node}:1"}, OLGA)
        assert drained == "GPU 1 is drained when its jobs have ended"
        with pytest.raises(SettingError, match="would import code"):
            source.act("policy", {"value": "evil.module:run"}, OLGA)
        with pytest.raises(LiveError, match="there is no GPU 9"):
            source.act("undrain", {"id": f"{look.gpus[1].node}:9"}, OLGA)
        with pytest.raises(SettingError, match="is of another node"):
            source.act("drain", {"id": "elsewhere:1"}, OLGA)
        for digit in ("²", "٣"):  # digits to str.isdigit, the first of which int() refuses
            with pytest.raises(SettingError, match="expected its number"):
                source.act("drain", {"id": digit}, OLGA)
    finally:
        world.close()


def test_a_job_is_submitted_as_the_user_that_the_viewer_is(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    viewer = Viewer(me, Role.OPERATOR, "token", "")
    world = World()
    try:
        world.up()
        source = LocalSource(Path(world.places.socket))

        def submit(asked: dict[str, str], who: Viewer = viewer) -> str:
            return source.submit(asked, who)

        line = {"command": "echo $USER in $PWD; exit 3", "gpus": "0", "name": "mine", "folder": str(tmp_path)}
        job = submit(line)
        world.until(lambda: world.state_of(job) == "failed", "it has ended")
        assert world.output(job) == f"{me} in {tmp_path}\n"
        assert (world.job(job)["name"], world.job(job)["exit_code"]) == ("mine", 3)
        for wrong, said in (
            ({"command": "true", "gpus": "many"}, "--gpus 'many'; expected a whole number"),
            (
                {"command": "true", "folder": str(tmp_path / "none")},
                f"{me} cannot enter the folder {tmp_path}/none",
            ),
            ({"command": "no-such-command"}, "there is no command 'no-such-command'"),
            ({"command": "-"}, "standard input names no job"),
        ):
            with pytest.raises(SettingError, match=said):
                submit(wrong)
        with pytest.raises(AccessError, match="no-such-user is no user of this machine"):
            submit(line, Viewer("no-such-user", Role.OPERATOR, "token", ""))
        with pytest.raises(AccessError, match="need the role operator"):
            submit(line, Viewer("root", Role.USER, "proxy", ""))
    finally:
        world.close()


def test_an_output_that_is_another_users_file_is_not_shown(tmp_path: Path) -> None:
    from berth.console.sources.local import _tail

    path = tmp_path / "out"
    path.write_text("secret\n")
    own = path.stat().st_uid
    assert _tail({"output": str(path), "uid": own}) == "secret"
    assert _tail({"output": str(path), "uid": own + 1}) is None
    assert _tail({"output": "/dev/zero", "uid": own}) is None
    assert _tail({"output": str(tmp_path / "none"), "uid": own}) is None


def test_an_output_is_followed_piece_by_piece_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "out"
    job = {"output": str(path), "uid": tmp_path.stat().st_uid}

    def piece(after: int | None, ended: bool = False) -> tuple[str, int, int]:
        file = local._opened(job)
        assert file is not None
        with file:
            found = local._piece(file, after, ended)
        return found.text, found.next, found.skipped

    path.write_bytes("one\n손".encode()[:-1])
    assert piece(None) == ("one\n", 4, 0)  # the sign is not whole yet
    assert piece(None, ended=True) == ("one\n\ufffd", 6, 0)
    path.write_bytes("one\n손\n".encode())
    assert piece(4) == ("손\n", 8, 0)
    assert piece(8) == ("", 8, 0)
    path.write_bytes(b"new\n")  # it runs again
    assert piece(8) == ("new\n", 4, 0)
    path.write_bytes(b"0123456789abcdef\n" * 100_000)
    text, following, skipped = piece(None)
    assert (len(text) <= local.TAIL_BYTES, following, skipped + len(text)) == (True, 1_700_000, 1_700_000)
    assert text.startswith("0123")  # from the beginning of a line on
    text, following, skipped = piece(17)
    assert (len(text) <= local.PIECE_BYTES, following, 17 + skipped + len(text)) == (
        True,
        1_700_000,
        1_700_000,
    )


def test_what_only_a_terminal_obeys_is_left_out_of_an_output_wherever_a_piece_ends(tmp_path: Path) -> None:
    path = tmp_path / "out"
    job = {"output": str(path), "uid": tmp_path.stat().st_uid}
    written = b"\x1b[1;32mok\x1b[0m \x1b]0;title\x07x\x1b(By\x1b7\x1b[?25l 9%\r10%\n\x1b]8;;u\x1b\\link\x1b]8;;\x1b\\\a"
    shown = "ok xy 9%\r10%\nlink"
    for cut in range(len(written) + 1):
        path.write_bytes(written[:cut])
        with path.open("rb") as file:
            first = local._piece(file, 0, ended=False)
        path.write_bytes(written)
        with path.open("rb") as file:
            second = local._piece(file, first.next, ended=True)
        assert first.text + second.text == shown
    path.write_bytes(written)
    assert local._tail(job) == shown.replace("\r", "\n")
    path.write_bytes(
        b"\x1b]0;" + b"x" * 2 * local.LONGEST_ESCAPE
    )  # a title that never ends hides nothing for ever
    with path.open("rb") as file:
        assert local._piece(file, 0, ended=False).next == path.stat().st_size


def test_a_pods_page_lists_no_cluster_again() -> None:
    source = KubernetesSource(Path("/no/such/kubeconfig"))  # whoever asks the cluster fails
    waits = LiveJob("ml/c", "ml", "c", "waiting", 1, 500, 30_000, 1, 1, why="no GPU has 500 milli free")
    seen = Snapshot(1_000_000, (), (waits,), 1)
    told = source.job("ml/c", OLGA, seen)
    assert (told["id"], told["state"], told["reason"]) == ("ml/c", "waiting", "no GPU has 500 milli free")
    with pytest.raises(KubernetesError, match="pod 'ml/d' neither waits"):
        source.job("ml/d", OLGA, seen)
    with pytest.raises(KubernetesError, match="not been seen yet, or does not answer"):
        source.job("ml/c", OLGA, None)


def test_a_drain_goes_to_the_api_server_if_it_names_a_gpu() -> None:
    source = KubernetesSource(Path("/no/such/kubeconfig"))
    with pytest.raises(SettingError, match="expected NODE:INDEX"):
        source.act("drain", {"id": "n1:00"}, OLGA)  # a label that means no GPU
    with pytest.raises(KubernetesError, match="/no/such/kubeconfig"):
        source.act("drain", {"id": "n1:0"}, OLGA)


def test_slurms_jobs_are_on_the_gpus_where_berth_placed_them_and_nobody_elses_are_changed(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm(
        used={"node1": "gpu:v100_0:1(IDX:0),gpu:v100_1:1(IDX:1)"}, nodes={"node1": "MIXED", "node2": "DOWN*"}
    )
    slurm.jobs = {
        "7": {
            "JobID": "7", "State": "RUNNING", "NodeList": "node1", "StartTime": "1500",
            "tres-alloc": "cpu=1,mem=500M,node=1,gres/gpu=1",
        },
        "8": {"JobID": "8", "State": "PENDING", "Reason": "Resources"},
    }  # fmt: skip
    placed = {"at_ms": 1, "event": "placed", "job": "7", "raw": "7", "where": "node1:1"}
    (tmp_path / "decisions.jsonl").write_text(json.dumps(placed) + "\n")
    told: list[list[str]] = []
    asked: list[Sequence[str]] = []

    def run(words: Sequence[str], lines: str) -> str:
        asked.append(words)
        if words[0] == "squeue" or words[-1] == "node":
            return slurm(words, lines)
        told.append(list(words))
        return ""

    source = SlurmSource(tmp_path, run)
    look = source.look()
    assert [(gpu.node, gpu.index, [each.job for each in gpu.tenants], gpu.health) for gpu in look.gpus] == [
        ("node1", 0, [], ""),
        ("node1", 1, ["7"], ""),
        ("node2", 0, [], "the node is DOWN*"),
        ("node2", 1, [], "the node is DOWN*"),
    ]
    assert [(job.id, job.state, job.why) for job in look.jobs] == [
        ("7", "running", ""),
        ("8", "waiting", "Resources"),
    ]
    assert "berth does not run beside Slurm" in look.notes[0]
    asked.clear()
    assert source.job("7", OLGA, look)["where"] == "node1 GPU 1"
    assert source.job("7", OLGA, None)["where"] == "node1"
    assert {words[0] for words in asked} == {"squeue"}  # no reader of a page has the nodes listed again
    ann = Viewer("ann", Role.USER, "token", "")
    assert source.act("cancel", {"id": "8"}, ann) == "scancel 8: done"
    for action, what, who in (("cancel", "8", NOBODY), ("drain", "node1:0", ann), ("priority", "8", ann)):
        with pytest.raises(AccessError):
            source.act(action, {"id": what, "value": 1}, who)
    with pytest.raises(SettingError, match="no name of a node"):
        source.act("drain", {"id": "-x State=RESUME:0"}, OLGA)
    with pytest.raises(LiveError, match="no id of a Slurm job"):
        source.act("cancel", {"id": "--user=ann"}, OLGA)
    assert told == [["scancel", "8"]]
    told.clear()
    slurm.jobs["8"] |= {"Reason": "JobHeldAdmin", "PriorityLong": "0"}
    with pytest.raises(AccessError, match="held by an administrator"):
        source.act("release", {"id": "8"}, ann)
    source.act("release", {"id": "8"}, OLGA)
    slurm.jobs["8"] |= {"Reason": "JobHeldUser"}
    source.act("release", {"id": "8"}, ann)
    source.act("hold", {"id": "8"}, ann)
    source.act("hold", {"id": "8"}, OLGA)
    assert [words[1] for words in told] == ["release", "release", "uhold", "hold"]
    slurm.gone = True
    with pytest.raises(LiveError, match="does not answer"):
        source.look()


def test_a_job_that_berth_holds_waits_for_berth_and_is_held_by_a_later_begin(tmp_path: Path) -> None:
    note = "berth:1;node=gres/gpu:1;job=;task="
    held = {"State": "PENDING", "Reason": "JobHeldAdmin", "PriorityLong": "0", "admin_comment": note}
    slurm = FakeSlurm(nodes={"node1": "IDLE"})
    slurm.jobs = {
        "8": {"JobID": "8", **held},
        "9": {"JobID": "9", **held, "JobArrayID": "9_[1-3%1]"},
        "10": {"JobID": "10", **held, "SubmitTime": "1000", "StartTime": "1000000000"},
    }
    told: list[list[str]] = []

    def run(words: Sequence[str], lines: str) -> str:
        if words[0] == "squeue" or words[-1] == "node":
            return slurm(words, lines)
        told.append(list(words))
        return ""

    status = {
        "at_ms": 1,
        "policy": "fifo",
        "mode": "place",
        "why": {"8": "no room", "9_1": "job 8 goes first"},
    }
    (tmp_path / "status.json").write_text(json.dumps(status))
    source = SlurmSource(tmp_path, run)
    jobs = {job.id: job for job in source.look().jobs}
    assert {name: (job.state, job.gpus, job.why) for name, job in jobs.items()} == {
        "8": ("waiting", 1, "no room"),
        "9": ("waiting", 1, "job 8 goes first"),
        "10": ("held", 1, "held by its user or an operator"),
    }
    ann = Viewer("ann", Role.USER, "token", "")
    assert source.command("hold", {"id": "8"}) == "scontrol update JobId=8 StartTime=now+3650days"
    assert source.command("priority", {"id": "8", "value": 5}) is None
    source.act("hold", {"id": "8"}, ann)
    source.act("release", {"id": "10"}, ann)
    with pytest.raises(SettingError, match="no action 'priority'"):
        source.act("priority", {"id": "8", "value": 5}, OLGA)
    assert [words[2:] for words in told] == [
        ["JobId=8", "StartTime=now+3650days"],
        ["JobId=10", "StartTime=now"],
    ]


@pytest.mark.parametrize("action", ["hold", "policy", "drain"])
def test_a_command_can_be_pasted_into_a_shell_whatever_it_is_about(action: str) -> None:
    hostile = "1; touch $(id)"
    command = LocalSource.command(action, {"id": hostile, "value": hostile})
    assert command is not None
    assert shlex.split(command) == ["berth", action, hostile]
