"""Which ways past a limit of GPU memory this machine's limit holds against: each is tried, by a process of its own.

What counts is what the driver says: the memory that NVML shows for these processes, less what contexts alone take.
Where NVML does not show them (in most containers), the bytes count that the driver gave them.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from berth.errors import PartitionError, SettingError
from berth.partition.gpus import Gpu, bytes_of_processes, free_bytes
from berth.partition.library import prove_path
from berth.partition.processes import lives, stat_of
from berth.partition.sizes import size_text

LEAST_MIB = 64
"""A smaller limit could not be told from what contexts take."""
_DATA_MIB = 256
_CONTEXTS = 8
"""A way's processes hold up to four contexts at one time; the same again is left for contexts that a way opens to get
past the limit."""
_MANAGED = frozenset({"managed", "managed-host", "rounding-managed"})
"""Ways of managed memory, of which NVML shows nothing until a kernel touches it: what the driver gave counts too."""
_LONGEST_END_S = 60.0
_ROOM = 3
"""How many limits must be free on the GPU: a way takes at most two, and contexts take some."""


class Verdict(StrEnum):
    """What became of one way."""

    HELD = "held"
    PASSED = "passed"
    """More than the limit was held at one time."""
    REFUSED = "refused wrongly"
    """It refused what fits."""
    UNTRIED = "not tried"
    """It cannot be tried here, which proves nothing."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way past a limit."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What one way came to."""

    way: Way
    verdict: Verdict
    given_bytes: int = 0
    """What the driver gave by the count of the processes themselves."""
    seen_bytes: int | None = None
    """What NVML showed for them beyond their contexts; None: it did not show them."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """The findings for one limit."""

    wall: str
    """What keeps the limit, in words."""
    gpu: Gpu
    driver: str
    limit_mib: int
    findings: tuple[Finding, ...]

    def of(self, verdict: Verdict) -> list[Finding]:
        """The findings of one kind, in the order of the ways."""
        return [finding for finding in self.findings if finding.verdict is verdict]


def ways() -> list[Way]:
    """All ways, in the order in which they are tried."""
    listed = subprocess.run([str(prove_path())], capture_output=True, text=True, check=True).stdout
    return [Way(*line.split("\t")) for line in listed.splitlines()]


def chosen(names: Sequence[str]) -> list[Way]:
    """The ways of these names, or all. Raises SettingError if one is not there."""
    known = {way.name: way for way in ways()}
    for name in names:
        if name not in known:
            raise SettingError(f"no way '{name}'; there are {', '.join(known)}")
    return [known[name] for name in names] or list(known.values())


_PRELOADED = {"libberth": "berth", "libvgpu": "HAMi-core", "libnvshare": "nvshare"}
"""What divides a card by a library that is preloaded: how the library's file begins, and the divider's name."""


def _preloads(environment: Mapping[str, str]) -> list[str]:
    return environment.get("LD_PRELOAD", "").replace(":", " ").split()


def divider(
    environment: Mapping[str, str], gpu_uuid: str, everywhere: Path = Path("/etc/ld.so.preload")
) -> str:
    """Name what divides the card for processes of this environment, as far as they show it.

    `everywhere` is the file of what is preloaded into every process.
    """
    preloaded = _preloads(environment)
    if everywhere.is_file():
        preloaded += everywhere.read_text(errors="replace").split()
    found = [
        f"{name} ({path})"
        for path in preloaded
        for start, name in _PRELOADED.items()
        if Path(path).name.startswith(start)
    ]
    if gpu_uuid.startswith("MIG-"):
        found.append("MIG")
    pipes = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if (pipes / "control").exists():
        found.append("MPS")
    return " and ".join(found) or "what limits processes here"


def missing_preload(environment: Mapping[str, str]) -> str:
    """The first library that `LD_PRELOAD` names by a path where there is none; empty if all are there. The loader
    leaves such a library out, and the proof would blame what never ran."""
    named = _preloads(environment)
    return next((path for path in named if "/" in path and "$" not in path and not Path(path).exists()), "")


def check_room(gpu: Gpu, limit_mib: int, driver_folder: Path | None = None) -> None:
    """Refuse where others could be short of memory meanwhile. Raises PartitionError, SettingError."""
    if limit_mib < LEAST_MIB:
        raise SettingError(f"a limit of {limit_mib} MiB to be tried; it must be at least {LEAST_MIB} MiB")
    free = free_bytes(gpu.uuid, driver_folder)
    needed = _ROOM * limit_mib << 20
    if free < needed:
        raise PartitionError(
            f"GPU {gpu.index} has {size_text(free)} free, and a limit of {limit_mib} MiB is tried with up to "
            f"{size_text(needed)}; choose a smaller limit or another GPU, or wait until others have ended. In a shell "
            "under a limit, NVML may show no more than the limit: run this outside, with --as-is and --set"
        )


def default_limit_mib(gpu: Gpu, bare: Mapping[str, str], driver_folder: Path | None = None) -> int:
    """A limit that has room for the contexts of a way, which take over 500 MiB each on some cards.

    `bare` is an environment without the limit. Raises PartitionError if no process gets a context in it.
    """
    sizes, why = _context_sizes(LEAST_MIB, bare, gpu, driver_folder)
    if why:
        raise PartitionError(
            f"a process gets no context on GPU {gpu.index} ({why}), so no way past a limit can be tried; see what "
            "nvidia-smi says"
        )
    return _DATA_MIB + _CONTEXTS * math.ceil(min(sizes, default=0) / 2**20)


def _context_sizes(
    limit_mib: int, environment: Mapping[str, str], gpu: Gpu, driver_folder: Path | None
) -> tuple[list[int], str]:
    """What NVML shows for a process that has a context and no memory of its own, and why it has none, if so."""
    answer, sizes = _ran(["nothing", str(limit_mib)], environment, gpu, driver_folder, _LONGEST_END_S)
    return sizes, "" if answer.startswith("holds ") else answer.partition(" ")[2] or answer


def attempt(
    tried: Sequence[Way],
    gpu: Gpu,
    limit_mib: int,
    environment: Callable[[], Mapping[str, str]],
    *,
    own_region: bool,
    driver_folder: Path | None = None,
    longest_s: float = 60,
) -> Iterator[Finding]:
    """Try ways one after another, each in an environment that puts its processes under the limit.

    Counters are changed only with `own_region`: then no other program uses the region of an environment. Raises
    PartitionError where the limit leaves no room for a context.
    """

    def ran(name: str) -> tuple[str, list[int]]:
        variables = environment()
        words = [name, str(limit_mib), *([variables["BERTH_REGION"]] if own_region else [])]
        return _ran(words, variables, gpu, driver_folder, longest_s)

    # What a process takes that has a context and no memory, and one with two.
    sizes, why = _context_sizes(limit_mib, environment(), gpu, driver_folder)
    if why:
        raise PartitionError(
            f"a process gets no context on GPU {gpu.index} under a limit of {limit_mib} MiB ({why}), so no way past it "
            "can be tried; give a larger --mem, or see what nvidia-smi says"
        )
    one_bytes = min(sizes, default=0)
    two_bytes = min(ran("contexts")[1], default=0)
    for way in tried:
        yield _found(way, limit_mib, one_bytes, max(0, two_bytes - one_bytes), *ran(way.name))


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _found(
    way: Way, limit_mib: int, context_bytes: int, next_context_bytes: int, answer: str, sizes: list[int]
) -> Finding:
    word, _, rest = answer.partition(" ")
    if word == "refused":
        return Finding(way, Verdict.REFUSED, why=rest)
    if word != "holds":
        return Finding(way, Verdict.UNTRIED, why=rest)
    given, contexts, error = map(int, rest.split())
    beyond = None
    if sizes:
        beyond = sum(max(0, size - context_bytes) for size in sizes)
        beyond = max(0, beyond - (contexts - 1) * next_context_bytes)
    if not given and not beyond:
        why = f"the driver gave it nothing, with error {error}" if error else "it took nothing"
        return Finding(way, Verdict.UNTRIED, 0, beyond, why)
    most = given if beyond is None else max(given, beyond) if way.name in _MANAGED else beyond
    return Finding(way, Verdict.PASSED if most > limit_mib << 20 else Verdict.HELD, given, beyond)


def _ran(
    words: Sequence[str],
    environment: Mapping[str, str],
    gpu: Gpu,
    driver_folder: Path | None,
    longest_s: float,
) -> tuple[str, list[int]]:
    """What a way said, and what NVML showed for each of its processes while it held what it had; none if NVML does not
    show them."""
    process = subprocess.Popen(
        [str(prove_path()), *words],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    sizes = []
    with process, selectors.DefaultSelector() as waiting:
        assert process.stdout is not None
        try:
            waiting.register(process.stdout, selectors.EVENT_READ)
            answered = waiting.select(longest_s)
            line = process.stdout.readline().decode().strip() if answered else ""
            if not line:
                line = f"silent {_silence(process, longest_s)}"
            if line.startswith("holds "):
                held = bytes_of_processes(gpu.uuid, driver_folder)
                sizes = [size for pid, size in held.items() if _session_of(pid) == process.pid]
        finally:
            _end(process)
    return line, sizes


def _silence(process: subprocess.Popen[bytes], waited_s: float) -> str:
    """Why a process has said nothing."""
    try:
        status = process.wait(1)
    except subprocess.TimeoutExpired:
        return f"it did not end in {waited_s:g} s"
    return (
        f"it was ended by signal {-status}"
        if status < 0
        else f"it ended without a word, with status {status}"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End all processes of a way, its children too: what they held is given back before the next."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
    until_s = time.monotonic() + _LONGEST_END_S
    while time.monotonic() < until_s and any(
        _still_runs(folder, process.pid) for folder in Path("/proc").glob("[0-9]*")
    ):
        time.sleep(0.01)


def _still_runs(folder: Path, session: int) -> bool:
    """Whether a process is one of a session and not yet a zombie."""
    return stat_of(folder.name)[3:4] == [str(session)] and lives(folder.name)
