"""A card of its own for every test: the fake driver, libberth.so and their environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from berth.cli import main
from berth.partition.gpus import Gpu

ROOT = Path(__file__).parents[2]
CARDS = [
    Gpu(0, "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219", 16384),
    Gpu(1, "GPU-c0c7ced5-dce3-eaf1-f8ff-060d141b2229", 16384),
]


def hooks(start: str = "") -> list[str]:
    """Name the hooks that begin with `start` (native/hooks.h), each before its twin."""
    lines = re.findall(
        r"^(?:(?:HOOK|NVHOOK|NVLISTS|CREATES|LOADS|BRINGS|BINDS_MEMORY|BINDS_ADDRESS|INSTANTIATES)\((\w+),"
        r"|(?:TWINS|CAPTURES|LAUNCHES)\((\w+),|PASSES\((\w+),\s+(\w+),)",
        (ROOT / "native" / "hooks.h").read_text(),
        re.MULTILINE,
    )
    named = [
        [alone] if alone else [twin, f"{twin}_ptsz"] if twin else [passed, f"{passed}_{thread}"]
        for alone, twin, passed, thread in lines
    ]
    return [name for pair in named for name in pair if name.startswith(start)]


@pytest.fixture(scope="session")
def native() -> Path:
    """The folder of what `make -C native tests` builds."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler to build libberth.so with")
    subprocess.run(
        ["make", "-s", "-j2", "-C", str(ROOT / "native"), "tests"], check=True, capture_output=True
    )
    return ROOT / "build" / "native"


@dataclass
class Card:
    """One fake card in a folder of its own, and programs run on it under limits."""

    native: Path
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)

    def environment(self, limits: Mapping[str, str | None]) -> dict[str, str]:
        drop = ("BERTH_", "LD_", "CUDA_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
        environment |= {
            "LD_LIBRARY_PATH": str(self.native / "fake"),
            "LD_PRELOAD": str(self.native / "libberth.so"),
            "BERTH_FAKE_CARD": str(self.folder / "card"),
            "BERTH_FAKE_WATCH": f"1:{64 << 20}",
            "BERTH_REGION": str(self.folder / "region"),
            "BERTH_GPU_MEM_MIB": "64",
            "BERTH_LOG": str(self.folder / "log"),
            "BERTH_TEST_FDS": "1",
            "BERTH_TEST_LINKED": str(self.native / "libplugin_linked.so"),
            "BERTH_TEST_ASKING": str(self.native / "libplugin_asking.so"),
        } | self.settings
        for name, value in limits.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        return environment

    def start(self, program: str, *words: str, **limits: str | None) -> subprocess.Popen[str]:
        command = [str(self.native / program), *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, text=True, env=self.environment(limits), **pipes)  # type: ignore[call-overload,no-any-return]

    def run(self, program: str, *words: str, **limits: str | None) -> tuple[int, str]:
        """The exit status and all that it printed."""
        with self.start(program, *words, **limits) as process:
            try:
                output, _ = process.communicate(timeout=600)
            finally:
                process.kill()  # one that is stuck is not waited for
        return process.returncode, output

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def card(native: Path) -> Iterator[Card]:
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="berth-test-", dir=parent) as folder:
        yield Card(native, Path(folder))


Berth = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def forker() -> Iterator[subprocess.Popen[str]]:
    """The process that commands are forked from (forker.py)."""
    command = [sys.executable, str(Path(__file__).with_name("forker.py"))]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


@pytest.fixture
def berth_apart(
    card: Card, forker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Runs a command in a process of its own, since NVML keeps the card that it was started with."""
    monkeypatch.setenv("BERTH_ROOT", str(card.folder / "root"))
    monkeypatch.setenv("BERTH_FAKE_CARD", str(card.folder / "card"))
    monkeypatch.setenv("BERTH_TEST_FDS", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def command(*words: str, **variables: str) -> tuple[int, str]:
        assert forker.stdin is not None
        assert forker.stdout is not None
        forker.stdin.write(json.dumps([words, os.environ | variables]) + "\n")
        forker.stdin.flush()
        code, said = json.loads(forker.stdout.readline())
        return int(code), str(said)

    return command


@pytest.fixture
def berth(card: Card, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Berth:
    """Runs a command; its exit status and everything that it printed."""
    monkeypatch.setenv("BERTH_ROOT", str(card.folder / "root"))
    monkeypatch.setenv("BERTH_FAKE_CARD", str(card.folder / "card"))
    monkeypatch.setenv("BERTH_TEST_FDS", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["berth", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    return command
