"""A trained network as one file of plain arrays: it is read without JAX and without pickle, or refused.

A NumPy archive (`.npz`): the member `header` is JSON in bytes, the others are the network's float32 arrays. What it
holds is checked before it is believed.
"""

from __future__ import annotations

import io
import json
import shlex
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from berth.errors import ModelError
from berth.network.demands import DEMANDS, Demand
from berth.network.forecast_network import INPUTS, UNITS, ForecastNetwork

FORMAT = "berth-model"
VERSION = 1
UNREADABLE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, KeyError, RuntimeError)
"""What a damaged archive raises; RuntimeError where a member is encrypted, or packed in a way that is not there."""
LARGEST_BYTES = 64 * 2**20
"""No array is larger; one that claims to be is not read."""


class TrainedModel(Protocol):
    """What every trained model says of itself, whatever its network."""

    @property
    def learner(self) -> str:
        """Which learner made it."""

    @property
    def interference(self) -> tuple[str, ...]:
        """The models of interference that it was trained under."""


@dataclass(frozen=True, slots=True)
class Model:
    """A trained network and what it was trained for."""

    network: ForecastNetwork
    learner: str
    """Which learner made it."""
    interference: tuple[str, ...]
    """The models of interference that it was trained under."""
    workloads: tuple[str, ...] = ()
    """What it was trained on."""
    demand: Demand = "series"
    """What it is shown of each job."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What came of the training: seeds, steps, seconds, ratios to the baselines."""
    command: str = ""
    """What makes it again."""


def model_bytes(model: Model) -> bytes:
    """The file; the same model gives the same bytes."""
    header: dict[str, Any] = {"format": FORMAT, "version": VERSION, "inputs": INPUTS}
    header |= {one.name: getattr(model, one.name) for one in fields(model) if one.name != "network"}
    header["figures"] = dict(model.figures)
    arrays = {name: np.asarray(array, np.float32) for name, array in model.network._asdict().items()}
    return archive_bytes(header, arrays)


def read_model(path: Path) -> Model:
    """The model of a file; ModelError, with what was expected, where it is not whole, not ours or not for us."""
    header, arrays = read_arrays(path, FORMAT, VERSION)
    if header.get("inputs") is None:
        raise ModelError(
            f"{path}: a model of an older version of berth, which is not read any more; train it again with"
            f" `berth train --out {shlex.quote(str(path))}`"
        )
    if header["inputs"] != INPUTS:
        raise ModelError(
            f"{path}: its network sees {header['inputs']!r} inputs; expected {INPUTS}: it was trained by another"
            " version of berth, train it anew with `berth train`"
        )
    try:
        model = Model(
            network=_network(path, arrays),
            learner=str(header["learner"]),
            interference=tuple(map(str, header["interference"])),
            workloads=tuple(map(str, header["workloads"])),
            demand=header["demand"],
            figures={str(key): float(value) for key, value in header["figures"].items()},
            command=str(header.get("command", "")),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: its header is not that of a model: {error!r}") from error
    if not isinstance(model.demand, str) or model.demand not in DEMANDS:
        raise ModelError(f"{path}: a demand '{model.demand}'; expected one of {', '.join(DEMANDS)}")
    return model


def archive_bytes(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """An archive with a header and arrays; the same give the same bytes."""
    members: dict[str, Any] = {"header": np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8)}
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **members, **arrays)
    return out.getvalue()


def read_arrays(path: Path, kind: str, version: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of an archive of this kind and version; nothing in it is ever unpickled or executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            large = [entry.filename for entry in archive.infolist() if entry.file_size > LARGEST_BYTES]
            if large:
                raise ModelError(
                    f"{path}: {large[0]} is larger than {LARGEST_BYTES} bytes; expected a {kind}"
                )
            found = {}
            for entry in archive.infolist():
                with archive.open(entry) as member:
                    found[entry.filename.removesuffix(".npy")] = _array(member.read())
    except UNREADABLE as error:
        if isinstance(error, OSError) and not path.is_file():
            raise
        raise ModelError(
            f"{path}: not a whole {kind} ({error}); expected the file that training wrote"
        ) from error
    try:
        header = json.loads(found.pop("header").tobytes())
        came = (header.get("format"), header.get("version"))
    except (KeyError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: it has no header; expected a {kind}, version {version}") from error
    if came != (kind, version):
        words = f"{path}: format {came[0]!r}, version {came[1]!r}; expected {kind!r}, version {version}"
        learner = header.get("learner")
        if isinstance(learner, str) and learner.isprintable():
            again = f"berth train --learner {learner} --out {shlex.quote(str(path))}"
            words += f"; it is a model of {learner}, which is made anew with `{again}`"
        raise ModelError(words)
    return header, found


def _array(member: bytes) -> NDArray[Any]:
    """The array of a member; ValueError where it has not the bytes that it claims, before any is set aside for it."""
    content = io.BytesIO(member)
    major, _ = np.lib.format.read_magic(content)
    if major != 1:
        raise ValueError(f"an array of format {major}; expected 1")
    shape, _, kind = np.lib.format.read_array_header_1_0(content)
    claimed = prod(shape) * kind.itemsize
    if kind.hasobject or claimed != len(member) - content.tell():
        raise ValueError(
            f"an array of {kind} {shape}, which is {claimed} bytes; it has {len(member) - content.tell()}"
        )
    content.seek(0)
    return np.lib.format.read_array(content, allow_pickle=False)


def _network(path: Path, arrays: dict[str, NDArray[Any]]) -> ForecastNetwork:
    """The network of these arrays; ModelError where they are not one's."""
    first, second = UNITS
    shapes = (INPUTS, first), (first,), (first, second), (second,), (second,)
    if odd := sorted(set(arrays) ^ set(ForecastNetwork._fields)):
        raise ModelError(
            f"{path}: it has not the arrays of its network; too many or missing: {', '.join(odd)}"
        )
    for name, shape in zip(ForecastNetwork._fields, shapes, strict=True):
        array = arrays[name]
        if array.shape != shape or array.dtype != np.float32:
            raise ModelError(f"{path}: {name} is {array.dtype} {array.shape}; expected float32 {shape}")
        if not np.isfinite(array).all():
            raise ModelError(f"{path}: {name} has values that are not finite; expected none")
    return ForecastNetwork(*(arrays[name].astype(np.float64) for name in ForecastNetwork._fields))
