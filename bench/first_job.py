"""From nothing to a finished job that has reported its end: commands and seconds, beside task-spooler, gflow and pueue.

    python bench/first_job.py [--only berth,tsp,gflow,pueue] [--pueue FOLDER]

Each way begins in an empty home and runs the commands of its documentation, including the install. The wheel is built
before the clock starts, as if it were published. What is in the machine's package caches is not downloaded again. The
job is `sleep 1`. Its end is reported when a file exists. `--notify` of berth writes that file; elsewhere the job's own
last command does, so a killed job reports nothing. A way that cannot run here is left out, with its reason.

    berth   one fake GPU, `submit --mem 8G --notify command:…`; the limit of memory is enforced
    tsp     task-spooler of Debian, unpacked where no root is needed; no GPU is placed
    gflow   runqd of PyPI, only if named: its daemon needs a session of tmux or systemd; no GPU is requested
    pueue   only if named: the programs of `cargo install pueue` are copied from --pueue, in place of a download; it
            knows no GPU
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness import save

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
WITHIN_S = 300.0


@dataclass(frozen=True)
class Way:
    """The commands of one tool in the order of typing, and those that stop it."""

    commands: tuple[str, ...]
    stop: tuple[str, ...]


def ways(wheel: Path, pueue: Path | None) -> dict[str, Way]:
    """Every tool; `notice` is the file in the home that tells of the end."""
    return {
        "berth": Way(
            (
                f"{UV} tool install --quiet {wheel}",
                "berth up --fake-gpus 1xA100-80G",
                "berth submit --mem 8G --notify 'command:touch $HOME/notice' sleep 1",
            ),
            ("berth down --cancel",),
        ),
        "tsp": Way(
            (
                "apt-get download -qq task-spooler && dpkg -x task-spooler_*.deb .",
                "tsp sh -c 'sleep 1; touch $HOME/notice'",
            ),
            ("tsp -K",),
        ),
        "gflow": Way(
            (
                f"{UV} tool install --quiet runqd",
                "gflowd start && sleep 2",  # it answers a little later
                "gbatch --gpus 0 -- sh -c 'sleep 1; touch $HOME/notice'",
            ),
            ("gflowd stop", "tmux kill-server"),  # the sessions of ended jobs keep tmux's server
        ),
        "pueue": Way(
            (
                f"mkdir bin && cp {pueue}/pueue {pueue}/pueued bin/",
                "pueued --daemonize",
                "pueue add -- 'sleep 1; touch $HOME/notice'",
            ),
            ("pueue shutdown",),
        ),
    }


def measured(way: Way) -> dict[str, object]:
    """Seconds of each command, and from the first to the notice; or what failed."""
    home = Path(tempfile.mkdtemp(prefix="first-job-"))
    passed = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("UV_", "PIP_", "LANG", "SSL_")) or "proxy" in name.lower()
    }
    for name in (".bashrc", ".profile", ".bash_profile"):  # as a home has whose user installs programs there
        (home / name).write_text("export PATH=$HOME/bin:$PATH\n")
    environment = {
        **passed,
        **dict.fromkeys(("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "TMUX_TMPDIR"), str(home)),
        "HOME": str(home),
        "PATH": f"{home}/bin:{home}/usr/bin:{os.environ['PATH']}",
        "UV_TOOL_DIR": str(home / "tools"),
        "UV_TOOL_BIN_DIR": str(home / "bin"),
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv"),
        "BERTH_STATE": str(home / "state"),
        "BERTH_ROOT": str(home / "root"),
        "TS_SOCKET": str(home / "tsp.socket"),
        "BERTH_QUIET": "1",
    }  # fmt: skip

    def run(line: str) -> tuple[int, str]:
        with tempfile.TemporaryFile("w+") as printed:  # a daemon would keep a pipe open
            done = subprocess.run(
                ["sh", "-c", line],
                cwd=home,
                env=environment,
                stdout=printed,
                stderr=printed,
                timeout=WITHIN_S,
            )
            printed.seek(0)
            return done.returncode, printed.read()

    begin, seconds = time.monotonic(), []
    try:
        for line in way.commands:
            at = time.monotonic()
            status, printed = run(line)
            seconds.append(round(time.monotonic() - at, 2))
            if status != 0:
                return {"failed": line, "why": printed.strip()[-300:]}
        while not (home / "notice").exists():
            if time.monotonic() - begin > WITHIN_S:
                return {"failed": "the notice", "why": f"it did not come within {WITHIN_S:g} s"}
            time.sleep(0.01)
        return {
            "commands": len(way.commands),
            "seconds": round(time.monotonic() - begin, 2),
            "seconds_of_each": seconds,
        }
    finally:
        for line in way.stop:
            run(line)
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="berth,tsp")
    parser.add_argument("--pueue", type=Path)
    words = parser.parse_args()
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="first-job-wheel-") as folder:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = Path(folder).iterdir()
        found = ways(wheel, words.pueue)
        for name in words.only.split(","):
            result = results[name] = measured(found[name])
            if "failed" in result:
                print(f"{name:6} left out: {result['failed']}: {result['why']}")
            else:
                print(
                    f"{name:6} {result['commands']} commands, {result['seconds']} s"
                    f" (each: {', '.join(map(str, result['seconds_of_each']))})"  # type: ignore[call-overload]
                )
    save("first_job", results)


if __name__ == "__main__":
    main()
