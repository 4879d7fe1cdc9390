"""A queue of its own for a test: broker, brain and jobs are real processes in a folder that goes away."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from berth.errors import LiveError
from berth.live.local.cgroups import Cgroups
from berth.live.local.places import Places
from berth.live.local.protocol import Connection
from berth.live.local.runs import Run
from tests import command as in_process

ROOT = Path(__file__).resolve().parents[3]
BERTH = str(Path(sys.executable).with_name("berth"))
PLAIN = "tests.live.local.plain_brain"
PATIENCE_S = 600.0
"""How long to wait for what must come; a busy machine compiles a policy for minutes."""


class World:
    """One state folder, and the broker that may be up on it."""

    def __init__(
        self,
        *,
        gpus: str = "2xA100-80G",
        brain: str = PLAIN,
        cpus: float = 64,
        options: Sequence[str] = (),
        module: str = "berth.live.local",
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bq-", dir="/dev/shm"))
        self.state = self.folder / "state"
        self.gpus, self.brain, self.cpus, self.options = gpus, brain, cpus, list(options)
        self.module = module
        """The broker's."""
        self.broker: subprocess.Popen[bytes] | None = None
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("BERTH_") and name != "PYTHONDONTWRITEBYTECODE"
            },
            "BERTH_STATE": str(self.state),
            "BERTH_ROOT": str(self.folder / "root"),
            "BERTH_CONFIG": str(self.folder / "berth.toml"),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        os.environ.pop("BERTH_SOCKET", None)
        self.places = Places(str(self.state))

    def up(self, *, wait: bool = True, ready: bool = True) -> None:
        """Start a broker; with `ready`, wait until its brain decides."""
        words = [
            sys.executable,
            "-m",
            self.module,
            "--cpus",
            str(self.cpus),
            "--brain",
            self.brain,
        ]
        words += ["--fake-gpus", self.gpus] if self.gpus else ["--no-gpus"]
        with (self.folder / "errors").open("wb") as errors:
            self.broker = subprocess.Popen(
                [*words, *self.options],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        if wait:
            self.until(lambda: self.status() is not None, "the broker answers")
        if ready:
            self.until(lambda: (self.status() or {}).get("brain") == "ready", "the brain is ready")

    def status(self) -> dict[str, Any] | None:
        """What the broker says of itself; None while nobody answers."""
        try:
            return self.ask("status")
        except LiveError:
            return None

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        """One request."""
        connection = Connection(self.places.socket)
        try:
            return connection.ask({"do": what, **fields})
        finally:
            connection.close()

    def submit(self, command: Sequence[str] | str, **flags: Any) -> str:
        """Queue one job, or an array; its id."""
        return str(self.submit_many([(command, flags)])[0])

    def submit_many(self, jobs: Sequence[tuple[Sequence[str] | str, dict[str, Any]]]) -> list[str]:
        """Queue several jobs in one message."""
        told = []
        for command, flags in jobs:
            argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
            told.append(
                {
                    "argv": argv,
                    "flags": {
                        key: value if value is True else str(value) if not isinstance(value, list) else value
                        for key, value in flags.items()
                    },
                }
            )
        answer = self.ask("submit", cwd=str(self.folder), env={"PATH": os.environ["PATH"]}, jobs=told)
        return [str(each) for each in answer["ids"]]

    def wait(self, *ids: str, timeout: float = PATIENCE_S) -> dict[str, tuple[str, int | None]]:
        """State and exit code of jobs, when they have ended."""
        answer = self.ask("wait", ids=list(ids), timeout=timeout)
        assert answer["late"] == 0, self.log()
        return {job["id"]: (job["state"], job["exit_code"]) for job in answer["jobs"]}

    def job(self, job_id: str) -> dict[str, Any]:
        """All of one job."""
        found: dict[str, Any] = self.ask("job", id=job_id)["jobs"][0]
        return found

    def state_of(self, job_id: str) -> str:
        """The state of one job."""
        return str(self.job(job_id)["state"])

    def output(self, job_id: str, attempt: int = 1) -> str:
        """What an attempt has written."""
        return (self.state / "output" / f"{job_id}.{attempt}.out").read_text()

    def log(self) -> str:
        """The broker's log."""
        return Path(self.places.log).read_text() if Path(self.places.log).exists() else ""

    def until(self, holds: Callable[[], bool], what: str, timeout: float = PATIENCE_S) -> None:
        """Wait until something holds; fails after a long time, with the log."""
        end = time.monotonic() + timeout
        while not holds():
            if self.broker is not None and self.broker.poll() is not None and "broker answers" in what:
                raise AssertionError(f"the broker ended: {(self.folder / 'errors').read_text()}")
            assert time.monotonic() < end, f"it never came true that {what}\n{self.log()[-4000:]}"
            time.sleep(0.01)

    def kill_broker(self) -> None:
        """kill -9."""
        assert self.broker is not None
        self.broker.kill()
        self.broker.wait()

    def kill_brain(self) -> None:
        """kill -9."""
        pid = (self.status() or {}).get("brain_pid")
        if pid:
            _kill(int(pid))

    def shims(self) -> list[int]:
        """The pids of the shims that there are."""
        found = []
        for path in (self.state / "runs").glob("*/shim"):
            try:
                pid, start = map(int, path.read_text().split())
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (OSError, ValueError):
                continue
            if int(stat[19]) == start and stat[0] != "Z":
                found.append(pid)
        return found

    def close(self) -> None:
        """End the broker and whatever it started."""
        if self.broker is not None:
            if self.broker.poll() is None:
                self.broker.kill()
            self.broker.wait()
        for path in (self.state / "runs").glob("*/began"):
            job, _, start = path.parent.name.rpartition("-")
            # Not by pid alone: another process may have it by now.
            Run(self.places.runs, job, int(start)).end_orphans()
        for pid in self.shims():
            _kill(pid)
        groups = Cgroups(hashlib.sha256(str(self.state).encode()).hexdigest()[:6])
        groups.sweep(set())
        groups.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def storm(
    world: World, jobs: int, kills: int, seed: int, *, weights: tuple[int, int, int] = (1, 1, 3)
) -> dict[str, Any]:
    """Kill broker, brain and shims at random moments while jobs run; what the jobs themselves wrote, counted.

    `weights` are those of broker, brain and shims. Returns how often each was killed, the jobs' states, and how many
    jobs began and ended how often.
    """
    rng = random.Random(seed)
    began, ended = world.folder / "began", world.folder / "ended"
    command = f"echo $BERTH_JOB_ID >> {began}; sleep 0.08; echo $BERTH_JOB_ID >> {ended}"
    ids = world.submit_many([(command, {"gpus": 0.1, "mem": "1G"})] * jobs)
    killed = dict.fromkeys(("broker", "brain", "shim"), 0)
    while sum(killed.values()) < kills:
        what = rng.choices(("broker", "brain", "shim"), weights)[0]
        time.sleep(rng.random() * 0.05)
        if what == "broker":
            world.kill_broker()
            killed[what] += 1
            world.up(ready=False)
        elif what == "brain":
            world.kill_brain()
            killed[what] += 1
        elif shims := world.shims():
            _kill(rng.choice(shims))
            killed[what] += 1
        done = len(ended.read_text().split()) if ended.exists() else 0
        if done >= jobs:
            break
    states = world.wait(*ids, timeout=600)
    counts = [
        {each: path.read_text().split().count(each) for each in set(path.read_text().split())}
        for path in (began, ended)
    ]
    told: dict[str, int] = {}
    for state, _ in states.values():
        told[state] = told.get(state, 0) + 1
    return {
        "killed": killed,
        "states": told,
        "lost": [each for each in ids if each not in counts[1]],
        "twice": [each for each in ids if counts[0].get(each, 0) > 1 or counts[1].get(each, 0) > 1],
    }


def berth(world: World, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The installed command, as a user of this queue types it."""
    return in_process.berth(*words, cwd=world.folder, env=world.environment, stdin=stdin)
