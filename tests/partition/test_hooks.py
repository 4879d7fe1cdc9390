"""Every hook of the list has a snippet of its own (native/tests/hooks_*.c), and lives through a call with zeros."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.partition.conftest import Card, hooks

HOOKS = hooks()

CONTEXTS = {"BERTH_FAKE_CONTEXT_MIB": "10", "BERTH_FAKE_MODULE_KIB": "1024"}
POOLS = {"BERTH_FAKE_POOL_MIB": "1"}


def settings(card: Card, hook: str) -> dict[str, str]:
    """The card and limits that a hook's snippet is written for."""
    if re.match(r"cuModuleGet|cuLibraryGet|cuKernelGet|cuFunc", hook):
        return CONTEXTS | {"BERTH_FAKE_LIKE": "lazy"}
    if hook.startswith("cuGreen"):
        return CONTEXTS | {"BERTH_FAKE_GREEN_KIB": str(9 << 10)}
    if re.match(r"cuCtx(?!Sync)|cuDevicePrimary|cuModule|cuLibrary", hook):
        return CONTEXTS
    if hook.startswith("cuLaunch"):
        clock = {"BERTH_TEST_CLOCK": str(card.folder / "clock"), "BERTH_TEST_CLOCK_PARTIES": "1"}
        preload = f"{card.native / 'libclock.so'} {card.native / 'libberth.so'}"
        return clock | {"BERTH_GPU_CORE_PCT": "50", "LD_PRELOAD": preload}
    if "Prefetch" in hook:
        return {"BERTH_FAKE_LIKE": "hmm"}
    return POOLS


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_does_what_it_is_there_for(card: Card, hook: str) -> None:
    other = None
    if hook.startswith("nvml"):  # another region's process on the same card, which must not be seen
        computes = "Util" in hook
        program = ("hooks", "--neighbour") if computes else ("check", "hold")
        other = card.start(*program, BERTH_REGION=str(card.folder / "other"), BERTH_FAKE_WATCH=None)
        assert other.stdout is not None
        assert other.stdout.readline() == ("busy\n" if computes else "held\n")
    pid = {"BERTH_TEST_OTHER": str(other.pid)} if other is not None else {}
    assert card.run("hooks", hook, **settings(card, hook), **pid) == (0, "")
    if other is not None:
        other.communicate("\n")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_lives_through_a_call_with_zeros(card: Card, hook: str) -> None:
    assert card.run("hooks", "--null", hook, BERTH_GPU_CORE_PCT="50") == (0, "")


def test_every_hook_has_a_snippet(native: Path) -> None:
    listed = subprocess.run([native / "hooks", "--list"], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == HOOKS


@pytest.mark.parametrize("hook", ["cuMemAlloc_v2", "cuMemAllocAsync", "cuCtxCreate_v2", "cuLaunchKernel"])
def test_a_snippet_fails_where_its_hook_does_nothing(card: Card, hook: str) -> None:
    alone = settings(card, hook)
    if "LD_PRELOAD" in alone:
        alone |= {"LD_PRELOAD": str(card.native / "libclock.so")}
    code, said = card.run("hooks", hook, **({"LD_PRELOAD": None} | alone))
    assert code == 1
    assert re.search(r"hooks_\w+\.c:", said)
