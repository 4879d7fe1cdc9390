"""`berth --host` over an ssh that runs the line here as ssh would, and over a real sshd without a port."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import berth

PROGRAM = Path(sys.executable).with_name("berth")
FAKE = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo "$2" >> "$SSH_HOSTS"
shift 2
exec sh -c "$*"
"""
TELLS = f"""#!{sys.executable}
import json, sys
print(json.dumps(sys.argv[1:]))
sys.exit(3)
"""
AWKWARD = ["two words", "it's", '"', "$HOME", "`id`", "a\\\\b", "", "*", "line\nbreak", "-x", "é", ";&|"]


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def through(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}:{PROGRAM.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SSH_HOSTS": str(folder / "hosts")}
    return subprocess.run([PROGRAM, *words], env=environment, capture_output=True, text=True)


def test_the_whole_command_runs_there_with_its_words_exactly(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "ssh", FAKE)
    program(tmp_path / "bin" / "berth", TELLS)
    done = through(tmp_path, "-q", "--host", "me@there", "submit", "--name", *AWKWARD)
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads(done.stdout) == ["--quiet", "submit", "--name", *AWKWARD]
    assert (tmp_path / "hosts").read_text() == "me@there\n"


def test_it_answers_as_here(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "ssh", FAKE)
    there = through(tmp_path, "--host", "there", "policies", "--json")
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout == berth("policies", "--json").stdout


def test_the_version_is_that_of_the_other_machine(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "ssh", FAKE)
    program(tmp_path / "bin" / "berth", TELLS)
    for words in (["--host", "there", "--version"], ["-V", "--host", "there"]):
        done = through(tmp_path, *words)
        assert (done.returncode, json.loads(done.stdout)) == (3, ["--version"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "-oProxyCommand=x", "queue"], "--host '-oProxyCommand=x'; expected MACHINE"),
        (["--host", "a b", "queue"], "--host 'a b'; expected MACHINE"),
    ],
)
def test_what_is_no_machine_is_refused(words: list[str], said: str) -> None:
    done = berth(*words)
    assert done.returncode == 2
    assert said in done.stderr


def test_without_ssh_it_says_what_to_install(tmp_path: Path) -> None:
    done = berth("--host", "there", "queue", env={**os.environ, "PATH": str(tmp_path)})
    assert done.returncode == 2
    assert "install OpenSSH's client" in done.stderr


def test_a_real_sshd_runs_it(tmp_path: Path) -> None:
    sshd, ssh, keygen = (
        shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("sshd", "ssh", "ssh-keygen")
    )
    if not (sshd and ssh and keygen):
        pytest.skip("there is no sshd, ssh or ssh-keygen here")
    for key in ("host", "mine"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    (tmp_path / "sshd.conf").write_text(
        f"HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/mine.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
        f"PermitRootLogin yes\nSetEnv PATH={tmp_path}/there:/usr/bin:/bin\n"
    )
    # Root's sshd wants a folder in /run, which a machine without the service lacks; it is made where none else sees it.
    inside = f"mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec {sshd} -i -f {tmp_path}/sshd.conf"
    daemon = f"unshare -m sh -c '{inside}'" if os.geteuid() == 0 else f"{sshd} -i -f {tmp_path}/sshd.conf"
    (tmp_path / "ssh.conf").write_text(
        f"Host *\nProxyCommand {daemon}\nIdentityFile {tmp_path}/mine\nIdentitiesOnly yes\n"
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\nBatchMode yes\n"
    )
    tried = subprocess.run(
        [ssh, "-F", tmp_path / "ssh.conf", "there", "true"], capture_output=True, text=True
    )
    if tried.returncode:
        pytest.skip(f"this user cannot log in through sshd here: {tried.stderr.strip()}")
    program(tmp_path / "bin" / "ssh", f'#!/bin/sh\nexec {ssh} -F {tmp_path}/ssh.conf "$@"\n')
    program(tmp_path / "there" / "berth", TELLS)
    done = through(tmp_path, "--host", "there", "submit", *AWKWARD)
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads(done.stdout) == ["submit", *AWKWARD]
