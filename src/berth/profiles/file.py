"""A profile as a file: one line that says what was measured on what, then CSV with the unit in every column's name.

    # berth-profile 1 {"application": "vgg16", "kind": "ML", …, "interval_ms": 5000}
    time_ms,gpu_pct,mem_mib,cores_pct,pcie_mbps
    0,5.0,1762,2.0,9600.0

A row an interval: what was used on average from `time_ms` until the next row. `cores` is null where it is not known;
`cores_are` may tell what `cores_pct` is, one of `CORES_ARE`.

`Profiles` holds them by application, and keeps them in a folder.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from berth.errors import ProfileError
from berth.files import plain_name, write_whole
from berth.model import GpuModel, Profile
from berth.traces.fields import Field, count, decimal

CORES_ARE = ("sm-activity", "memory-activity")
"""What can stand for the use of the cores."""
MARK = "# berth-profile 1 "
COLUMNS = ("time_ms", "gpu_pct", "mem_mib", "cores_pct", "pcie_mbps")
OTHER_UNITS = {
    "gpu_pct": ("gpu", "gpu_milli", "gpu_fraction"),
    "mem_mib": ("mem", "mem_mb", "mem_gb", "mem_bytes", "mem_kib", "mem_gib", "mem_pct"),
    "cores_pct": ("cores", "cores_milli", "cores_fraction"),
    "pcie_mbps": ("pcie", "pcie_kbps", "pcie_gbps", "pcie_pct"),
    "time_ms": ("time", "time_s", "timestamp"),
}
"""Columns that say the same in another unit, to tell so."""


def profile_text(profile: Profile) -> str:
    """The profile as the text of a file."""
    hardware = profile.hardware
    head = {
        "application": profile.application,
        "kind": profile.kind,
        "input_bytes": profile.input_bytes,
        "parameters": profile.parameters,
        "gpu": hardware.name,
        "architecture": hardware.architecture,
        "mem_mib": hardware.mem_mib,
        "cores": hardware.cores or None,
        "pcie_mbps": hardware.pcie_mbps,
        "interval_ms": profile.interval_ms,
    }
    if profile.cores_are:
        head["cores_are"] = profile.cores_are
    scale = np.array([100, hardware.mem_mib, 100, hardware.pcie_mbps])
    lines = [MARK + json.dumps(head, ensure_ascii=False), ",".join(COLUMNS)]
    for row, values in enumerate((profile.usage * scale).tolist()):
        lines.append(",".join([str(row * profile.interval_ms), *map(_plain, values)]))
    return "\n".join(lines) + "\n"


def read_profile(path: Path) -> Profile:
    """Read a profile's file. Raises ProfileError naming the file, the application, the field and the row (row 1 is
    the first below the columns) for a gap, a missing value, another unit or more than the hardware has."""
    try:
        return _read(path)
    except ProfileError as error:
        raise (error if str(path) in str(error) else ProfileError(f"{path}: {error}")) from error.__cause__


def _read(path: Path) -> Profile:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path} is not a profile: {error}") from error
    first, _, rest = text.partition("\n")
    if not first.startswith(MARK):
        raise ProfileError(f"{path} is not a profile; expected its first line to begin with '{MARK.strip()}'")
    head = _head(path, first.removeprefix(MARK))
    try:
        cores = (
            0 if head["cores"] is None else _whole(path, head, "cores", 1, ", or null where it is not known")
        )
        hardware = GpuModel(
            *(str(head["gpu"]), str(head["architecture"])),
            *(_whole(path, head, "mem_mib", 1), cores, _whole(path, head, "pcie_mbps", 0)),
        )
        interval_ms, input_bytes = _whole(path, head, "interval_ms", 1), _whole(path, head, "input_bytes", 0)
        name, kind, parameters = (str(head[key]) for key in ("application", "kind", "parameters"))
    except KeyError as error:
        raise ProfileError(f"{path}, line 1: no field {error}; export a profile to see all") from error
    values = _values(name, rest, interval_ms)
    whole = np.array([100, hardware.mem_mib, 100, hardware.pcie_mbps], dtype=np.float64)
    for column in np.flatnonzero(whole <= 0):
        if values[:, column].any():
            raise ProfileError(
                f"profile of '{name}', {FIELDS[column]}: the hardware has 0 of it; say in line 1 how much it has"
            )
    usage = values / np.where(whole > 0, whole, 1)
    usage.flags.writeable = False
    cores_are = head.get("cores_are", "")
    if cores_are not in ("", *CORES_ARE):
        raise ProfileError(
            f"{path}, line 1, cores_are is {json.dumps(cores_are)}; expected {' or '.join(CORES_ARE)}, or none"
        )
    return checked(Profile(name, kind, input_bytes, parameters, hardware, interval_ms, usage, cores_are))


def is_profile(path: Path) -> bool:
    """Whether a file begins as one does, right or wrong."""
    mark = MARK.encode()
    with path.open("rb") as file:
        return file.read(len(mark) + 3).removeprefix(b"\xef\xbb\xbf").startswith(mark)


def _plain(value: float) -> str:
    """Six digits that count, none of them behind the sixth place, and never an exponent."""
    return np.format_float_positional(float(f"{round(value, 6):.6g}"), trim="-")


def _head(path: Path, text: str) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}, line 1 cannot be read: {error}") from error
    if not isinstance(head, dict):
        raise ProfileError(f"{path}, line 1 holds {text[:40]!r}; expected an object of JSON")
    return head


def _whole(path: Path, head: Mapping[str, Any], key: str, least: int, instead: str = "") -> int:
    value = head[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ProfileError(
            f"{path}, line 1, {key} is {json.dumps(value)}; expected a whole number of {least} or more{instead}"
        )
    return value


def _values(name: str, text: str, interval_ms: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(steps, 4) in the units of the columns."""
    reader = csv.DictReader(io.StringIO(text))
    there = tuple(reader.fieldnames or ())
    for column in COLUMNS:
        if column not in there:
            other = next((unit for unit in OTHER_UNITS[column] if unit in there), None)
            instead = f" but '{other}', which is another unit" if other else ""
            raise ProfileError(
                f"profile of '{name}': no column '{column}'{instead}; expected {', '.join(COLUMNS)}"
            )
    rows = []
    for number, row in enumerate(reader, start=1):
        if more := row.get(None):  # what DictReader calls values without a column
            raise ProfileError(
                f"profile of '{name}', row {number} has {len(more)} more values than there are columns, {more[0]!r}"
                f" the first; expected {len(there)}"
            )
        found = [_number(name, column, number, row[column]) for column in COLUMNS]
        if found[0] != (number - 1) * interval_ms:
            raise ProfileError(
                f"profile of '{name}', time_ms, row {number} is {row['time_ms']}: a gap; expected"
                f" {(number - 1) * interval_ms}, every {interval_ms} ms"
            )
        rows.append(found[1:])
    return np.array(rows, dtype=np.float64).reshape(len(rows), 4)


def _without_exponent(name: str) -> Field[float]:
    known = decimal(name)

    def parse(text: str) -> float:
        if "e" in text.lower():
            raise ValueError(text)
        return known.parse(text)

    return Field(name, parse, f"{known.expected}, without an exponent")


CELLS: dict[str, Field[int] | Field[float]] = {
    "time_ms": count("time_ms"),
    "gpu_pct": decimal("gpu_pct"),
    "mem_mib": _without_exponent("mem_mib"),
    "cores_pct": decimal("cores_pct"),
    "pcie_mbps": decimal("pcie_mbps"),
}
"""What a cell may hold, as in traces. A value below 0 is read all the same, to be told as such."""


def _number(name: str, column: str, row: int, text: str | None) -> float:
    if text is None or not text.strip():
        raise ProfileError(
            f"profile of '{name}', {column}, row {row} is missing; expected series of equal length"
        )
    size, field = text.strip().removeprefix("-"), CELLS[column]
    try:
        value = field.parse(size)
    except ValueError as error:
        raise ProfileError(
            f"profile of '{name}', {column}, row {row} is {text!r}; expected {field.expected}"
        ) from error
    return -value if text.strip().startswith("-") else value


FIELDS = ("GPU utilisation", "GPU memory", "GPU cores", "PCIe throughput")
"""What the columns of `usage` are, in words."""


def checked(profile: Profile) -> Profile:
    """The same profile. Raises ProfileError naming application, field and row (the first is row 1) where a value is
    missing, negative or more than the hardware has, or where there is nothing to be a profile of."""
    name = profile.application
    if not name:
        raise ProfileError("a profile has no application; expected its name")
    if not name.isprintable():
        raise ProfileError(
            f"profile of {name!r}: its name has line breaks or control characters; expected none"
        )
    if profile.interval_ms < 1:
        raise ProfileError(
            f"profile of '{name}': an interval of {profile.interval_ms} ms; expected 1 or more"
        )
    if profile.hardware.mem_mib < 1:
        raise ProfileError(
            f"profile of '{name}': hardware '{profile.hardware.name}' with no memory; expected the card's in MiB"
        )
    if min(profile.hardware.cores, profile.hardware.pcie_mbps) < 0:
        raise ProfileError(
            f"profile of '{name}': hardware '{profile.hardware.name}' with {profile.hardware.cores} cores and"
            f" {profile.hardware.pcie_mbps} MB/s; expected 0 (not known) or more"
        )
    usage = np.asarray(profile.usage)
    if usage.ndim != 2 or usage.shape[1] != len(FIELDS) or not len(usage):
        raise ProfileError(
            f"profile of '{name}': series of shape {usage.shape}; expected a row an interval, one or more,"
            f" of {', '.join(FIELDS)}"
        )
    bad = np.argwhere(~((usage >= 0) & (usage <= 1)))
    if len(bad):
        row, column = bad[0]
        value = usage[row, column]
        what = (
            "is missing"
            if np.isnan(value)
            else f"is {value:g}, negative"
            if value < 0
            else f"is {value:g} of what the hardware has, over its capacity"
        )
        raise ProfileError(
            f"profile of '{name}', {FIELDS[column]}, row {row + 1} {what}; expected a fraction from 0 to 1"
        )
    return profile


IN_HISTORY = "profiles"
"""The folder of a history that holds its profiles, a file each."""
SHARED = "live, shared"
"""The kind of a profile of which no run was alone: its use of the GPU is at least what it says."""
BEGUN = "live, begun"
"""The kind of a profile of the first minutes of a run alone, until one of the others is recorded of such a run."""
RUNNING = "live, running"
"""The kind of a profile of runs that go on, such as of a service: it says nothing of their run time."""
ENDING = ".profile.csv"


class Profiles(Mapping[str, Profile]):
    """A read-only mapping from an application to its profile; of two of one application the later counts."""

    def __init__(self, profiles: Iterable[Profile] = ()) -> None:
        self._by_application = {profile.application: profile for profile in profiles}

    def __getitem__(self, application: str) -> Profile:
        return self._by_application[application]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_application)

    def __len__(self) -> int:
        return len(self._by_application)

    def __or__(self, others: Mapping[str, Profile]) -> Profiles:
        """All of both; where both know an application, the other's counts."""
        return Profiles([*self.values(), *others.values()])

    @classmethod
    def of_folder(
        cls, folder: str | os.PathLike[str], *, wrong: list[ProfileError] | None = None
    ) -> Profiles:
        """All profiles of a folder. Raises ProfileError for a folder that is not there, or a file that is wrong.

        With `wrong` what is to be said of such files goes there, and the others are read.
        """
        path = Path(folder)
        if not path.is_dir():
            raise ProfileError(f"there is no folder {path}; make one with `berth profile import` or `record`")
        found = []
        for file in sorted(path.glob(f"*{ENDING}")):
            try:
                found.append(read_profile(file))
            except ProfileError as error:
                if wrong is None:
                    raise
                wrong.append(error)
        return cls(found)

    @classmethod
    def of_history(
        cls, history: str | os.PathLike[str], *, wrong: list[ProfileError] | None = None
    ) -> Profiles:
        """The profiles of a history; none where it has none yet. `wrong` as for a folder."""
        path = Path(history) / IN_HISTORY
        return cls.of_folder(path, wrong=wrong) if path.is_dir() else cls()

    def of_runs_alone(self, *, begun: bool = True) -> Profiles:
        """Those that were recorded of runs alone, and so tell how applications press on each other; unless `begun`,
        without those that are only of the beginning of a run."""
        left_out = (SHARED,) if begun else (SHARED, BEGUN)
        return Profiles(profile for profile in self.values() if profile.kind not in left_out)


def keep_profile(profile: Profile, folder: str | os.PathLike[str]) -> Path:
    """Write a profile into a folder of profiles, in place of the same application's; says where."""
    path = Path(folder) / file_name(profile.application)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, profile_text(checked(profile)))
    return path


def file_name(application: str) -> str:
    """The name of an application's profile in a folder of profiles."""
    return plain_name(application) + ENDING


def company(profile: Profile) -> str:
    """How it ran: `alone` if any run of it was, otherwise `next to other jobs`."""
    return "next to other jobs" if profile.kind == SHARED else "alone"
