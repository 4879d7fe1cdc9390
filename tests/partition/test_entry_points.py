"""Every entry point of NVIDIA's headers is hooked, watched, harmless or disclaimed (native/entry_points.tsv)."""

from __future__ import annotations

import re
from importlib.metadata import files
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.partition.conftest import ROOT, hooks

DATA = ROOT.parent / "shared" / "data" / "cuda_lookups"
DECLARED = re.compile(r"CUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\(")
TYPEDEF = re.compile(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(?:_ptsz|_ptds)?\)")
VARIANT = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")


class Standing(NamedTuple):
    """What the library does about one entry point, all its variants alike."""

    name: str
    standing: str
    why: str


def table() -> list[Standing]:
    lines = (ROOT / "native" / "entry_points.tsv").read_text().splitlines()
    return [Standing(*line.split("\t")) for line in lines[1:]]


def plain(symbol: str) -> str:
    return VARIANT.sub("", symbol)


@pytest.fixture(scope="module")
def headers() -> Path:
    """The headers of the newest CUDA release, which the development environment pins."""
    (header,) = (path for path in files("nvidia-cuda-runtime") or [] if path.name == "cuda.h")
    return Path(str(header.locate())).parent


def declared(text: str) -> set[str]:
    return {plain(name) for name in DECLARED.findall(text)}


def test_every_entry_point_of_the_headers_has_its_standing(headers: Path) -> None:
    names = set[str]().union(*(declared(path.read_text()) for path in headers.glob("cuda*.h")))
    assert len(names) > 500
    assert sorted(names - {row.name for row in table()}) == []


def test_every_entry_point_that_a_runtime_looks_up_has_its_standing() -> None:
    if not DATA.is_dir():
        pytest.skip("the recorded lookups are not at hand")
    looked_up = {line.split("\t")[0] for path in DATA.glob("*.tsv") for line in path.read_text().splitlines()}
    assert len(looked_up) > 300
    assert sorted({plain(name) for name in looked_up if name} - {row.name for row in table()}) == []


def test_the_lookup_table_knows_every_version_of_the_headers(headers: Path) -> None:
    """What `cuGetProcAddress` answers to a new version of a name must be known before it is hooked."""
    typed = {
        (name, version)
        for path in headers.glob("cuda*ypedefs.h")
        for name, version in TYPEDEF.findall(path.read_text())
    }
    written = (ROOT / "native" / "entry_points.h").read_text()
    known = set(re.findall(r"ENTRY\((\w+), (\d+),", written))
    assert sorted(typed - known) == []


def test_what_is_called_hooked_is_hooked_in_every_variant() -> None:
    symbols = dict[str, set[str]]()
    written = (ROOT / "native" / "entry_points.h").read_text()
    for name, symbol in re.findall(r"^ENTRY\((\w+), \d+, \d, (\w+)\)", written, re.MULTILINE):
        symbols.setdefault(plain(name), set()).add(symbol)
    wrapped = set(hooks("cu"))
    hooked = {row.name for row in table() if row.standing == "hooked"}
    watched = {row.name for row in table() if row.standing == "watched"}
    assert {plain(hook) for hook in wrapped} == hooked | watched
    assert sorted(symbol for name in hooked for symbol in symbols[name] - wrapped) == []


def test_the_table_gives_a_reason_for_whatever_is_not_hooked() -> None:
    rows = table()
    assert [row.name for row in rows] == sorted({row.name for row in rows})
    assert {row.standing for row in rows} == {"hooked", "watched", "harmless", "disclaimed"}
    assert [row.name for row in rows if (row.why == "") != (row.standing == "hooked")] == []


def test_a_new_entry_point_is_noticed(headers: Path) -> None:
    newer = (headers / "cuda.h").read_text() + "\nCUresult CUDAAPI cuMemAllocSomewhereNew(size_t bytes);\n"
    assert sorted(declared(newer) - {row.name for row in table()}) == ["cuMemAllocSomewhereNew"]
