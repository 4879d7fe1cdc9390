"""What an OCI runtime does for a container: a cgroup, the hooks in their places, the program, and the cgroup's removal.

`python runtime.py PARENT BUNDLE MIB COMMAND…` does all of it, with `berth partition COMMAND…` as the hook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GPU_JOB = Path(__file__).parents[1] / "live" / "local" / "gpu_job.py"
BERTH = [sys.executable, "-c", "from berth.cli import main; main()"]


@dataclass(frozen=True)
class Container:
    """A container in the cgroup PARENT/NAME of its bundle's name; its environment is this process's."""

    parent: Path
    bundle: Path
    hook: Sequence[str] = ("partition", "inject", "--fake-gpu")

    @property
    def group(self) -> Path:
        return self.parent / self.bundle.name

    def make(self, partition: str) -> None:
        """The bundle, which asks for a partition, and the cgroup."""
        (self.bundle / "rootfs").mkdir(parents=True, exist_ok=True)
        config = {"root": {"path": "rootfs"}, "annotations": {"dev.berth/partition": partition}}
        (self.bundle / "config.json").write_text(json.dumps(config))
        self.group.mkdir(parents=True, exist_ok=True)

    def create(self) -> tuple[int, str]:
        """Call the hook of `createContainer`, in the container's cgroup and in namespaces of its own."""
        return self._call("creating", ["unshare", "--mount", "--cgroup"], self._enter)

    def stopped(self) -> tuple[int, str]:
        """Call the hook of `poststop`."""
        return self._call("stopped", [], None)

    def _call(self, status: str, before: list[str], enter: object) -> tuple[int, str]:
        state = json.dumps({"status": status, "bundle": str(self.bundle), "pid": 1})
        ran = subprocess.run(
            [*before, *BERTH, *self.hook],
            input=state,
            text=True,
            check=False,
            preexec_fn=enter,  # type: ignore[arg-type]
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return ran.returncode, ran.stdout

    def run(self, mib: int, *, preload: str = "") -> int:
        """Run a program that takes this much of the GPU; its status."""
        with self._program(preload, str(mib)) as process:
            print(process.communicate()[0], end="", flush=True)
        return process.returncode

    @contextmanager
    def holding(self, mib: int, *, preload: str = "") -> Iterator[None]:
        """Have the program hold it; before the container is created, it is what the hook runs beside."""
        with self._program(preload, str(mib), str(self.bundle / "never")) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == f"holds {mib}\n"
                yield
            finally:
                process.kill()

    def _program(self, preload: str, *words: str) -> subprocess.Popen[str]:
        environment = os.environ | ({"LD_PRELOAD": preload} if preload else {})
        command = [sys.executable, str(GPU_JOB), *words]
        return subprocess.Popen(
            command, env=environment, preexec_fn=self._enter, text=True, stdout=subprocess.PIPE
        )

    def init(self) -> subprocess.Popen[bytes]:
        """The container's first process, which is in its cgroup from before the hook until the end."""
        return subprocess.Popen(["sleep", "infinity"], preexec_fn=self._enter)

    def end(self) -> None:
        """Kill what is left in the cgroup, and remove it without a word to anyone."""
        if not self.group.exists():
            return
        (self.group / "cgroup.kill").write_text("1")
        end = time.monotonic() + 300
        while self.group.exists():
            try:
                self.group.rmdir()
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.01)

    def _enter(self) -> None:
        (self.group / "cgroup.procs").write_text("0")


def main() -> None:
    parent, bundle, mib, *hook = sys.argv[1:]
    container = Container(Path(parent), Path(bundle), hook)
    container.make("blue")
    with container.init() as init:
        code, said = container.create()
        print(said, end="", flush=True)
        if code == 0:
            container.run(int(mib))
        container.end()
        init.wait()
    container.stopped()


if __name__ == "__main__":
    main()
