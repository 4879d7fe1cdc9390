"""Every route to the driver ends at the limit (native/tests/routes.c)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.partition.conftest import Card, hooks

ROUTES = [
    "dlsym", "dlvsym_dlsym", "libc_dlsym", "global", "next", "linked_plugin", "deepbind_linked",
    "deepbind_lazy", "deepbind_dlsym", "runpath", "dlmopen", "dlmopen_shares", "dlclose", "crowd", "lookup",
]  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_to_the_driver_ends_at_the_limit(card: Card, route: str) -> None:
    assert card.run("routes", route) == (0, "")


@pytest.mark.parametrize("rigid", [False, True])
def test_a_lookup_by_version_ends_there_too(card: Card, rigid: bool) -> None:
    preload = f"{card.native / 'libstrange.so'} {card.native / 'libberth.so'}"
    strange = {"LD_PRELOAD": preload, "BERTH_TEST_STRANGE": "rigid"} if rigid else {}
    assert card.run("routes", "dlvsym", LD_LIBRARY_PATH=str(card.native / "old"), **strange) == (0, "")


def test_it_does_where_the_drivers_symbols_cannot_be_edited(card: Card) -> None:
    preload = f"{card.native / 'libstrange.so'} {card.native / 'libberth.so'}"
    assert card.run("routes", "dlsym", LD_PRELOAD=preload, BERTH_TEST_STRANGE="rigid") == (0, "")
    assert "the driver's symbol table cannot be edited" in card.log


def test_a_second_copy_of_the_driver_is_the_first(card: Card) -> None:
    copy = card.folder / "elsewhere" / "libcuda.so.1"
    copy.parent.mkdir()
    shutil.copy(card.native / "fake" / "libcuda.so.1", copy)
    assert card.run("routes", "second_copy", BERTH_TEST_COPY=str(copy)) == (0, "")


@pytest.mark.parametrize("route", ["private_copy", "private_copy_first"])
@pytest.mark.parametrize("rename", [False, True])
def test_a_private_copy_of_the_driver_is_known_by_what_it_holds(card: Card, route: str, rename: bool) -> None:
    copy = card.folder / "libprivate.so"
    contents = (card.native / "fake" / "libcuda.so.1").read_bytes()
    copy.write_bytes(contents.replace(b"libcuda.so.1\0", b"libother.so1\0") if rename else contents)
    assert card.run("routes", route, BERTH_TEST_COPY=str(copy)) == (0, "")


def test_a_private_copy_is_told_of(card: Card) -> None:
    copy = card.folder / "libprivate.so"
    shutil.copy(card.native / "fake" / "libcuda.so.1", copy)
    assert card.run("routes", "private_copy", BERTH_TEST_COPY=str(copy)) == (0, "")
    assert "a second driver is in this process, under whatever name: its calls go to the first" in card.log


def test_every_route_is_run(native: Path) -> None:
    listed = subprocess.run(
        [native / "routes", "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(listed) - {
        "second_copy",
        "private_copy",
        "private_copy_first",
        "dlvsym",
        "no_driver",
        "old_driver",
        "nvml",
        "cost",
    } == set(ROUTES)


def test_a_machine_without_a_driver_looks_like_one(card: Card) -> None:
    assert card.run("routes", "no_driver", LD_LIBRARY_PATH="/nonexistent") == (0, "")


def test_a_driver_without_newer_calls_lacks_them_still(card: Card) -> None:
    assert card.run("routes", "old_driver", LD_LIBRARY_PATH=str(card.native / "old")) == (0, "")


def test_nvml_shows_the_containers_own_part(card: Card) -> None:
    assert card.run("routes", "nvml") == (0, "0 0\n")  # before a process has used the GPU
    others = {"BERTH_REGION": str(card.folder / "other"), "BERTH_FAKE_WATCH": None}
    # One after the other: contexts take nothing on this card, so that a neighbour which came to hold memory while the
    # holder's is made would be taken for it (test_nvml.py).
    with card.start("check", "hold") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with card.start("check", "hold", **others) as stranger:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "held\n"
            assert card.run("routes", "nvml") == (0, "40 1\n")
            stranger.communicate("\n")
        holder.communicate("\n")


def test_only_the_intended_symbols_are_exported(native: Path) -> None:
    names = subprocess.run(
        ["nm", "-D", "--defined-only", native / "libberth.so"], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in names.stdout.splitlines()}
    intended = {*hooks(), "dlsym", "dlvsym", "dlopen", "dlmopen"}
    assert intended <= exported
    assert {name for name in exported - intended if not name.startswith("berth_")} == set()
