"""Write entry_points.h: which driver symbol answers a lookup of (name, CUDA version, per-thread flag).

    python entry_points.py INCLUDE_DIR [INCLUDE_DIR ...] > entry_points.h

Each directory holds one CUDA release's headers (the PyPI packages nvidia-cuda-runtime-cu11, -cu12 and
nvidia-cuda-runtime have them). `cudaTypedefs.h` names the version that introduced each variant of an entry
point; `cuda.h` names the symbols. Only these facts are kept, not the headers' text.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

TYPEDEF = re.compile(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)")
SYMBOL = re.compile(r"\bcu[A-Z]\w*")
VARIANT = re.compile(r"^(cu\w+?)(?:_v(\d+))?(_ptsz|_ptds)?$")
PASTED = re.compile(r"__CUDA_API_(PTSZ|PTDS)\((cu\w+)\)")
"""The macros by which cuda.h names most per-thread symbols without spelling them out."""


def main(folders: list[str]) -> None:
    versions: dict[tuple[str, str], set[int]] = defaultdict(set)
    symbols: dict[tuple[str, str], set[int]] = defaultdict(set)
    for folder in map(Path, folders):
        for path in sorted(folder.glob("cuda*ypedefs.h")):
            for name, version, thread in TYPEDEF.findall(path.read_text()):
                versions[name, thread].add(int(version))
        for path in sorted(folder.glob("cuda*.h")):
            if path.name.endswith("ypedefs.h"):
                continue
            text = path.read_text()
            pasted = {f"{symbol}_{suffix.lower()}" for suffix, symbol in PASTED.findall(text)}
            for symbol in pasted.union(SYMBOL.findall(text)):
                match = VARIANT.match(symbol)
                if match is not None:
                    name, number, thread = match.groups()
                    symbols[name, thread or ""].add(int(number or 1))
    print(
        "/* Written by entry_points.py: ENTRY(name, CUDA version that introduced it, per-thread, symbol). */"
    )
    for (name, thread), found in sorted(versions.items()):
        ordered = sorted(found)
        numbers = sorted(symbols[name, thread] or symbols[name, ""] or {1})
        if len(ordered) == 1:
            numbers = numbers[-1:]
        if len(numbers) != len(ordered):
            sys.exit(f"{name}{thread}: versions {ordered} do not match variants {numbers}; name them by hand")
        for version, number in zip(ordered, numbers, strict=True):
            symbol = name + (f"_v{number}" if number > 1 else "") + thread
            print(f"ENTRY({name}, {version}, {int(bool(thread))}, {symbol})")


if __name__ == "__main__":
    main(sys.argv[1:])
