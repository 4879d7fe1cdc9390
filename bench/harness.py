"""What the benchmarks share: where data is, what machine this is, where results go."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

BENCH = Path(__file__).resolve().parent


def data_folder() -> Path:
    """$BERTH_TEST_DATA, else shared/data beside the repository; ends the script where there is none."""
    folder = Path(os.environ.get("BERTH_TEST_DATA") or BENCH.parents[1] / "shared" / "data")
    if not folder.is_dir():
        raise SystemExit(f"no traces in {folder}; name their folder in BERTH_TEST_DATA, or with --data")
    return folder


def machine() -> dict[str, str | int | None]:
    """What a figure was measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def save(name: str, results: object) -> None:
    """Write the results as JSON beside the scripts, and say where."""
    folder = BENCH / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
    print(f"wrote {path}")
