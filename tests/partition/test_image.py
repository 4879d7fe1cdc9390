"""How large a module is at least, by its image (native/image.c)."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

MIB = 1 << 20
SHF_ALLOC = 2


def cubin(*globals_bytes: int, machine: int = 190) -> bytes:
    """An ELF file as ptxas writes it: names, code, shared memory, and global variables of these sizes."""
    names = b"\0.shstrtab\0.text.k\0.nv.shared.k\0.nv.global.init\0.nv.global\0.nv.globalish\0"

    def section(name: bytes, kind: int, size: int, flags: int = SHF_ALLOC, offset: int = 64) -> bytes:
        return struct.pack("<IIQQQQIIQQ", names.index(name + b"\0"), kind, flags, 0, offset, size, 0, 0, 8, 0)

    sections = [
        bytes(64),
        section(b".shstrtab", 3, len(names), flags=0),
        section(b".text.k", 1, 3 * MIB),
        section(b".nv.shared.k", 8, 5 * MIB),
        section(b".nv.globalish", 8, 7 * MIB),
    ]
    for at, size in enumerate(globals_bytes):
        sections.append(section((b".nv.global", b".nv.global.init")[at % 2], 8, size))
    head = b"\x7fELF\x02\x01\x01\x33\x07".ljust(16, b"\0")
    head += struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 129, 0, 0, 64 + len(names), 0, 64, 56, 0, 64, len(sections), 1
    )
    return head + names + b"".join(sections)


def fat(*entries: tuple[int, int, bytes]) -> bytes:
    """A fat binary of (kind, flags, image): kind 1 is PTX, 2 a cubin."""
    body = b"".join(
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(image), 0, 0, 7, 8, 80, 0, 0, flags, 0, 0) + image
        for kind, flags, image in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (cubin(100 * MIB), 100 * MIB),
        (cubin(100 * MIB, 8), 100 * MIB + 8),
        (cubin(), 0),
        (cubin(100 * MIB, machine=62), 0),
        (cubin(1 << 63, 1 << 63), 0),
        (fat((2, 0x11, cubin(100 * MIB)), (2, 0x11, cubin(80 * MIB))), 80 * MIB),
        (fat((2, 0x11, cubin(100 * MIB)), (1, 0x11, b".version 8.0")), 0),
        (fat((2, 0x2011, cubin(100 * MIB))), 0),
        (fat((2, 0x8011, cubin(100 * MIB))), 0),
        (fat(), 0),
        (b".version 8.0\n.target sm_80\n", 0),
        (b"", 0),
    ],
    ids=[
        "one",
        "two",
        "none",
        "other machine",
        "too large",
        "fat",
        "with PTX",
        "LZ4",
        "zstd",
        "empty",
        "PTX",
        "",
    ],
)
def test_an_image_tells_what_its_global_variables_take(
    native: Path, tmp_path: Path, image: bytes, told: int
) -> None:
    """Whole, and cut short at any byte with nothing behind it: no process ends of it."""
    file = tmp_path / "image"
    file.write_bytes(image)
    seen = subprocess.run([native / "image", file], capture_output=True, text=True, check=False)
    assert (seen.returncode, seen.stdout) == (0, f"{told}\n")
