"""What starts the queue with the machine, over a systemd and a cron that are a few lines of shell."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from berth.errors import LiveError
from berth.live.local.boot import MARK, Cron, Systemd, starter, uninstall
from tests.live.local.world import World, berth

SYSTEMCTL = """
echo "$*" >> calls
case "$*" in --version) echo "systemd 255 (255.4)"; exit 0;; esac
case "$*" in *is-active*) [ -e active ]; exit;; *restart*) touch active;; *disable*) rm -f active;; esac
"""
LOGINCTL = """
case "$1" in
show-user) [ -e linger ] && echo yes || { echo "User 1000 is not logged in or lingering" >&2; exit 1; };;
enable-linger) touch linger;;
disable-linger) rm linger;;
esac
"""
CRONTAB = """
case "$1" in
-l) [ -e table ] || { echo "no crontab for ann" >&2; exit 1; }; cat table;;
-r) rm table;;
-) cat > table;;
esac
"""


class Machine:
    """The folder of the fakes, which keep what they are told in files, and of a user's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unit = folder / "config" / "systemd" / "user" / "berth-queue.service"
        (folder / "bin").mkdir()
        for name, text in (("systemctl", SYSTEMCTL), ("loginctl", LOGINCTL), ("crontab", CRONTAB)):
            program = folder / "bin" / name
            fails = 'for word; do [ -e "fails-$word" ] && { cat "fails-$word" >&2; exit 1; }; done\n'
            program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\ncd {folder}\n{fails}{text}")
            program.chmod(0o755)

    def fail(self, word: str, said: str = "Access denied\n") -> None:
        """Have commands fail that are given this word."""
        (self.folder / f"fails-{word}").write_text(said)

    def lose(self, *programs: str) -> None:
        """Have the machine without these."""
        for name in programs:
            (self.folder / "bin" / name).unlink()

    def has(self, name: str) -> bool:
        """Whether a fake keeps this."""
        return (self.folder / name).exists()

    @property
    def table(self) -> Path:
        """The crontab."""
        return self.folder / "table"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One whose user is not root."""
    made = Machine(tmp_path)
    for name in [name for name in os.environ if name.startswith(("BERTH_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return made


def test_a_unit_starts_the_queue_with_the_machine_and_is_taken_back(machine: Machine) -> None:
    assert Systemd().install(["--cpus", "4"]) == [
        f"wrote {machine.unit}",
        "it starts again after a failure, and with the machine",
    ]
    lines = machine.unit.read_text().splitlines()
    (command,) = (line for line in lines if line.startswith("ExecStart="))
    assert command.endswith('berth" "up" "--foreground" "--cpus" "4"')
    assert {"Restart=on-failure", "KillMode=process", "DelegateSubgroup=berth-broker"} < {*lines}
    assert (machine.has("active"), machine.has("linger")) == (True, True)
    assert (machine.folder / "calls").read_text().splitlines()[-3:] == [
        "--user daemon-reload",
        "--user enable berth-queue",
        "--user restart berth-queue",
    ]
    assert uninstall() == [
        f"removed {machine.unit}",
        "your services run only while you are logged in, as before",
    ]
    assert (machine.unit.exists(), machine.has("active"), machine.has("linger")) == (False, False, False)
    with pytest.raises(LiveError, match="nothing is installed"):
        uninstall()


@pytest.mark.parametrize("step", ["daemon-reload", "enable", "restart"])
def test_a_systemd_that_refuses_leaves_all_as_before(machine: Machine, step: str) -> None:
    machine.fail(step)
    with pytest.raises(LiveError, match=f"`systemctl --user {step}.* failed, and all is as before: Access"):
        Systemd().install([])
    assert (machine.unit.exists(), machine.has("active"), machine.has("linger")) == (False, False, False)


def test_a_unit_that_cannot_be_changed_stays_as_it_was(machine: Machine) -> None:
    Systemd().install(["--cpus", "4"])
    before = machine.unit.read_text()
    machine.fail("enable")
    with pytest.raises(LiveError, match="all is as before"):
        Systemd().install(["--cpus", "5"])
    assert (machine.unit.read_text(), machine.has("linger")) == (before, True)
    (machine.folder / "fails-enable").unlink()
    Systemd().install(["--cpus", "5"])
    assert '"--cpus" "5"' in machine.unit.read_text()
    uninstall()
    assert not machine.has("linger")  # the second time it was there because of the first


def test_a_unit_that_systemd_does_not_let_go_stays(machine: Machine) -> None:
    Systemd().install([])
    machine.fail("disable")
    with pytest.raises(LiveError, match="the unit is still there, because systemd says: Access denied"):
        uninstall()
    assert machine.unit.exists()
    machine.lose("systemctl")
    assert uninstall()[0] == f"removed {machine.unit}"


@pytest.mark.parametrize("do", [lambda: Systemd().install([]), uninstall])
def test_a_unit_of_another_hand_is_left_alone(machine: Machine, do: Callable[[], object]) -> None:
    machine.unit.parent.mkdir(parents=True)
    machine.unit.write_text("[Service]\n")
    with pytest.raises(LiveError, match="is not from berth"):
        do()
    assert machine.unit.read_text() == "[Service]\n"


def test_who_may_not_run_services_without_a_login_is_told_and_who_may_keeps_it(machine: Machine) -> None:
    machine.fail("enable-linger")
    assert "after: sudo loginctl enable-linger" in Systemd().install([])[1]
    (machine.folder / "fails-enable-linger").unlink()
    (machine.folder / "linger").touch()
    assert Systemd().install([])[1].endswith("with the machine")
    assert uninstall() == [f"removed {machine.unit}"]
    assert machine.has("linger")


def test_what_a_unit_says_of_the_queue_is_quoted(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_STATE", '/a b/50%/"$x"\\')
    lines = Systemd().text(["--policy", "my.py:$f"], linger=False).splitlines()
    assert r'Environment="BERTH_STATE=/a b/50%%/\"$x\"\\"' in lines
    assert any(line.endswith('"--policy" "my.py:$$f"') for line in lines)
    monkeypatch.setenv("BERTH_STATE", "/a\nExecStartPre=/bad")
    with pytest.raises(LiveError, match="no unit can hold"):
        Systemd().text([], linger=False)


def test_the_unit_of_root_is_the_machines(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Systemd().path == str(machine.unit)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert Systemd().path == "/etc/systemd/system/berth-queue.service"
    Systemd().runs()
    assert (machine.folder / "calls").read_text().splitlines()[-1] == "is-active --quiet berth-queue"


@pytest.mark.parametrize("before", [None, "MAILTO=ann\n5 4 * * * backup \\%d", "# été\n"])
def test_where_no_systemd_answers_a_line_of_cron_starts_the_queue(
    machine: Machine, before: str | None
) -> None:
    machine.fail("show-environment", "Failed to connect to bus\n")
    if before is not None:
        machine.table.write_text(before)
    boot, why = starter()
    assert isinstance(boot, Cron)
    assert why == "systemd does not answer, so cron starts the queue: Failed to connect to bus"
    boot.install(["--policy", "fifo"])
    boot.install(["--policy", "a b%"])
    *others, line = machine.table.read_text().splitlines(keepends=True)
    assert "".join(others) == (before or "") + ("\n" if before and not before.endswith("\n") else "")
    assert line.startswith("@reboot env XDG_CONFIG_HOME=")
    assert line.endswith(f"berth up --policy 'a b\\%' >/dev/null {MARK}\n")
    assert uninstall() == ["removed the line of berth from your crontab"]
    assert (machine.table.read_text() if machine.table.exists() else "") == "".join(others)


@pytest.mark.parametrize("step", ["-l", "-"])
def test_a_crontab_that_cannot_be_read_or_written_is_left_as_it_is(machine: Machine, step: str) -> None:
    machine.table.write_text("5 4 * * * backup\n")
    machine.fail(step, "you (ann) are not allowed to use this program\n")
    with pytest.raises(LiveError, match=r"as it is|as before"):
        Cron().install([])
    assert machine.table.read_text() == "5 4 * * * backup\n"


def test_where_nothing_starts_services_that_is_said(machine: Machine) -> None:
    machine.lose("systemctl", "crontab", "loginctl")
    with pytest.raises(LiveError, match=r"systemctl: No such file.* and there is no crontab on the PATH"):
        starter()
    with pytest.raises(LiveError, match="nothing is installed"):
        uninstall()


def test_the_command_installs_a_queue_and_takes_it_away_with_its_service(machine: Machine) -> None:
    world = World(gpus="")
    world.environment |= {name: os.environ[name] for name in ("PATH", "XDG_CONFIG_HOME")}
    try:
        world.up()
        done = berth(world, "up", "--install")
        assert (done.returncode, machine.unit.exists()) == (2, False)
        assert "the queue is up already, but not as a service. First: berth down" in done.stderr
        (machine.folder / "active").touch()
        done = berth(world, "up", "--install", "--no-gpus")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[0] == f"wrote {machine.unit}"
        assert done.stdout.splitlines()[-1].startswith("the queue is up: no GPUs; ")
        assert f'Environment="BERTH_STATE={world.state}"' in machine.unit.read_text().splitlines()
        done = berth(world, "up", "--uninstall", "--cpus", "4")
        assert (done.returncode, "--uninstall goes alone" in done.stderr) == (2, True)
        done = berth(world, "up", "--uninstall")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == "the queue goes down; its jobs go on"
        assert world.broker is not None
        assert world.broker.wait(300) == 0
        assert not machine.unit.exists()
    finally:
        world.close()
