"""What is compiled is compiled again where something that went into it has changed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from berth.arrays import is_compiled

CALLEE = """
from berth.arrays import compiled

@compiled
def inner(number):
    return number + {added}
"""
CALLER = """
from berth.arrays import compiled
from {callee} import FACTOR, inner

@compiled
def outer(number):
    return FACTOR * inner(number)
"""


def _load(folder: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _outer(folder: Path, added: int, factor: int) -> tuple[int, int, bool]:
    """What the kernels of freshly loaded files make of 1, how many of them came compiled from the disk, and whether
    that was known before."""
    (folder / "stale_callee.py").write_text(f"FACTOR = {factor}\n" + CALLEE.format(added=added))
    (folder / "stale_caller.py").write_text(CALLER.format(callee="stale_callee"))
    at_ns = 10**18 + added  # what is written twice within one tick of the clock differs all the same
    os.utime(folder / "stale_callee.py", ns=(at_ns, at_ns))
    os.utime(folder / "stale_caller.py", ns=(10**18, 10**18))
    importlib.invalidate_caches()
    _load(folder, "stale_callee")
    caller = _load(folder, "stale_caller")
    known = is_compiled(caller.outer)
    made = caller.outer(1)
    assert is_compiled(caller.outer)
    return made, sum(caller.outer.stats.cache_hits.values()), known


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("stale_callee", "stale_caller"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_kernel_is_compiled_again_when_its_callee_or_a_constant_changed(tmp_path: Path) -> None:
    assert _outer(tmp_path, added=1, factor=1) == (2, 0, False)
    assert _outer(tmp_path, added=1, factor=1) == (2, 1, True)
    assert _outer(tmp_path, added=5, factor=1) == (6, 0, False)
    assert _outer(tmp_path, added=5, factor=3) == (18, 0, False)
    assert _outer(tmp_path, added=5, factor=3) == (18, 1, True)


@pytest.mark.parametrize("damage", [0, 1, 20, 100, -1, "of another kind", "no code", "no folder"])
def test_a_kernel_whose_index_is_damaged_or_whose_code_is_missing_is_not_compiled(
    damage: int | str, tmp_path: Path
) -> None:
    """An index is written before the code."""
    assert _outer(tmp_path, added=1, factor=1) == (2, 0, False)
    caller = _load(tmp_path, "stale_caller")
    assert is_compiled(caller.outer)
    caller = _load(tmp_path, "stale_caller")
    (index,) = tmp_path.rglob("*outer*.nbi")
    if isinstance(damage, int):
        index.write_bytes(index.read_bytes()[:damage])
    elif damage == "of another kind":
        index.write_bytes(b"\x80\x05cno_such_module\nThing\n.")
    elif damage == "no code":
        for path in tmp_path.rglob("*outer*.nbc"):
            path.unlink()
    else:
        index.unlink()
        index.mkdir()
    assert not is_compiled(caller.outer)


def test_numba_is_imported_when_a_kernel_is_first_called_and_takes_the_place_of_all(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import numpy as np\n"
        "import berth.policies, berth.scheduler, berth.engine\n"
        "from berth import Job, Node, simulate\n"
        "from berth.cluster import Cluster, kernels\n"
        "before = 'numba' in sys.modules\n"
        "Cluster([Node('n', gpus=1)])\n"
        "list(simulate([Job('a', 0, 1)], Cluster([Node('n', gpus=1)]), 'fifo+first-fit'))\n"
        "print(before, type(kernels.take).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False CPUDispatcher\n"


@pytest.mark.slow
def test_a_kernel_that_is_defined_while_another_thread_loads_numba_can_be_called(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from types import ModuleType\n"
        "from berth import arrays\n"
        "late = []\n"
        "def double(number):\n"
        "    return 2 * number\n"
        "class Defines(ModuleType):\n"
        "    @property\n"
        "    def __dict__(self):\n"  # looked at when all kernels known before have been made
        "        late.append(arrays.compiled(double))\n"
        "        return {}\n"
        "early = arrays.compiled(double)\n"
        "sys.modules['defines'] = Defines('defines')\n"
        "print(early(1), late[0](2))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout == "2 4\n", done.stderr
