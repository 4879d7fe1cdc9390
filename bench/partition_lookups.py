"""What cuGetProcAddress answers through the library, beside what the driver alone answers.

    python bench/partition_lookups.py [FILE.tsv …] [--json]

FILE has lines of name, version and flags, with tabs between, as the fake driver writes them down of a runtime that
starts over it (`BERTH_FAKE_LOOKUPS=FILE`). Each is resolved over the fake driver, and the last column says where the
two differ; the status is 1 then. Without a FILE the recordings among the test data are resolved, and only how many
differ is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from berth.errors import PartitionError
from berth.partition.library import fake_driver_folder, library_path
from harness import data_folder

_PROGRAM = """
import ctypes, json, sys
text = ctypes.c_char_p
class Info(ctypes.Structure):
    _fields_ = [("file", text), ("base", ctypes.c_void_p), ("name", text), ("address", ctypes.c_void_p)]
driver = ctypes.CDLL("libcuda.so.1")
process = ctypes.CDLL(None)
driver.cuInit(0)
answers = []
for name, version, flags in json.load(sys.stdin):
    found, status, info = ctypes.c_void_p(), ctypes.c_int(-1), Info()
    words = (name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status))
    result, symbol = driver.cuGetProcAddress_v2(*words), None
    if result == 0 and found.value and process.dladdr(found, ctypes.byref(info)):
        symbol = info.name.decode() if info.name and info.address == found.value else None
    answers.append([symbol, status.value, result, (info.file or b"").decode().rsplit("/", 1)[-1]])
json.dump(answers, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One lookup: what came back through the library and from the driver alone (None: nothing)."""

    name: str
    version: int
    flags: int
    symbol: str | None
    driver_symbol: str | None
    hooked: bool
    """Whether the library's own function came back, which keeps the limits."""

    @property
    def same(self) -> bool:
        return self.symbol == self.driver_symbol


def resolve(path: Path) -> list[Lookup]:
    """Every (name, version, flags) of a tab-separated file, over the fake driver."""
    try:
        text = path.read_text()
    except OSError as error:
        raise PartitionError(f"{path}: cannot be read ({error.strerror})") from error
    asked: list[tuple[str, int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("\t")
        if len(words) != 3 or not words[1].isdigit() or not words[2].isdigit():
            raise PartitionError(
                f"{path}, line {number}: {line!r}; expected name, version and flags, with tabs between them"
            )
        asked.append((words[0], int(words[1]), int(words[2])))
    through, alone = _answers(asked, preload=True), _answers(asked, preload=False)
    return [
        Lookup(
            *lookup,
            symbol=str(ours[0]) if ours[0] else None,
            driver_symbol=str(theirs[0]) if theirs[0] else None,
            hooked=ours[3] == "libberth.so",
        )
        for lookup, ours, theirs in zip(asked, through, alone, strict=True)
    ]


def _answers(asked: Sequence[tuple[str, int, int]], *, preload: bool) -> list[list[object]]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "LD_", "CUDA_"))
    }
    card = f"/dev/shm/berth-lookups-{os.getpid()}"
    environment |= {
        "LD_LIBRARY_PATH": str(fake_driver_folder()),
        "BERTH_FAKE_CARD": card,
        "BERTH_FAKE_VERSION": "99990",
    }
    if preload:
        environment |= {
            "LD_PRELOAD": str(library_path()),
            "BERTH_GPU_MEM_MIB": "64",
            "BERTH_REGION": f"{card}-region",
        }
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=json.dumps(asked),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        Path(card).unlink(missing_ok=True)
        for left in Path(f"{card}-region").glob("*"):
            left.unlink()
        if preload and Path(f"{card}-region").exists():
            Path(f"{card}-region").rmdir()
    if answer.returncode != 0:
        raise PartitionError(f"the lookups could not be run: {answer.stderr.strip()[-300:]}")
    return list(json.loads(answer.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", type=Path, metavar="FILE.tsv", nargs="*")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    words = parser.parse_args()
    paths = words.paths or sorted((data_folder() / "cuda_lookups").glob("*.tsv"))
    try:
        found = {path: resolve(path) for path in paths}
    except PartitionError as error:
        sys.exit(f"error: {error}")
    everything = [one for lookups in found.values() for one in lookups]
    if words.json:
        print(json.dumps([asdict(one) | {"same": one.same} for one in everything], indent=2))
    elif words.paths:
        for one in everything:
            mark = "" if one.same else "   <-- differs"
            asked = f"{one.name}\t{one.version}\t{one.flags}"
            print(f"{asked}\t{one.symbol or '-'}\t{one.driver_symbol or '-'}{mark}")
    else:
        for path, lookups in found.items():
            differing = sum(not one.same for one in lookups)
            print(f"{path.name}: {len(lookups)} lookups, {differing} differing")
    if any(not one.same for one in everything):
        sys.exit(f"{sum(not one.same for one in everything)} lookups differ from the driver's")


if __name__ == "__main__":
    main()
