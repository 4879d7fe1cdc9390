"""A limit holds where the environment is lost: under `env -i` and over ssh, by /etc/ld.so.preload."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.partition.conftest import Card
from tests.ports import free_ports

from berth import partition as partitions
from berth.partition.gpus import gpus

pytestmark = pytest.mark.slow

MACHINE = """set -eu
mkdir {folder}/upper {folder}/work {folder}/run
mount -t overlay overlay -o lowerdir=/etc,upperdir={folder}/upper,workdir={folder}/work /etc
mount --bind {folder}/run /run
mkdir -p /run/berth /run/sshd /run/user
mkdir /run/berth/region
cp {library} /run/berth/libberth.so
mount --bind {region} /run/berth/region
echo /run/berth/libberth.so > /etc/ld.so.preload
"""
"""A machine whose agent has set it up, in a mount namespace of its own."""


@pytest.fixture
def machine(card: Card, monkeypatch: pytest.MonkeyPatch) -> tuple[Card, str]:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("no unshare, or not root")
    monkeypatch.setenv("BERTH_FAKE_CARD", str(card.folder / "card"))
    (gpu,) = gpus(card.native / "fake")
    partitions.create("blue", gpu, partitions.Limit(64), root=card.folder / "root")
    script = MACHINE.format(
        folder=card.folder, library=card.native / "libberth.so", region=card.folder / "root" / "blue"
    )
    return card, script


def run(script: str) -> tuple[int, str]:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("this user may not make mount namespaces")
    answer = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    if "mount:" in answer.stderr:
        pytest.skip(f"no overlay over /etc here: {answer.stderr[-200:]}")
    return answer.returncode, answer.stdout + answer.stderr


def check(card: Card, family: str) -> str:
    """A command line with what the fake driver needs, and nothing of berth's."""
    words = [
        "env", "-i", f"BERTH_FAKE_CARD={card.folder / 'card'}", f"LD_LIBRARY_PATH={card.native / 'fake'}",
        "BERTH_TEST_FDS=1", str(card.native / "check"), family,
    ]  # fmt: skip
    return shlex.join(words)


def test_the_limit_holds_under_an_empty_environment(machine: tuple[Card, str]) -> None:
    card, script = machine
    assert run(script + check(card, "total")) == (0, "64\n")


def test_the_limit_holds_over_ssh(machine: tuple[Card, str], tmp_path: Path) -> None:
    server, client = shutil.which("sshd"), shutil.which("ssh")
    if server is None or client is None:
        pytest.skip("no ssh and sshd")
    card, script = machine
    (port,) = free_ports(1)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (tmp_path / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path / 'host'}\nPidFile {tmp_path / 'pid'}\n"
        f"AuthorizedKeysFile {tmp_path / 'user.pub'}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
    )
    options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectionAttempts=60"
    login = f"{client} -F none {options} -i {tmp_path / 'user'} -p {port} root@127.0.0.1"
    said = run(
        f"{script}\n{server} -f {tmp_path / 'sshd'} -E {tmp_path / 'log'}\n"
        f"{login} {shlex.quote(check(card, 'total'))}\n"
        f"{login} {shlex.quote(check(card, 'linear'))}\n"
        f"kill $(cat {tmp_path / 'pid'})\n"
    )
    assert said == (0, "64\n"), (tmp_path / "log").read_text()


def test_a_program_with_more_rights_than_its_user_writes_to_no_file_that_the_user_names(
    machine: tuple[Card, str],
) -> None:
    """The preload list brings the library into setuid programs too; what their user sets must not reach it there."""
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    _, script = machine
    with tempfile.TemporaryDirectory(prefix="berth-test-") as folder:
        place = Path(folder)
        place.chmod(0o777)
        for name, mode in (("plain", 0o755), ("setuid", 0o4755)):
            shutil.copy("/bin/true", place / name)
            (place / name).chmod(mode)
        user = "setpriv --reuid 12345 --clear-groups env BERTH_GPU_BURST=maybe"
        lines = [f"{user} BERTH_LOG={place / name}.log {place / name}" for name in ("plain", "setuid")]
        assert run(script + "\n".join(lines)) == (0, "")
        assert "neither 0 nor 1" in (place / "plain.log").read_text()
        assert not (place / "setuid.log").exists()
