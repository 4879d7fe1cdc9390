"""A trained network as one file of plain arrays: it is read without JAX and without pickle, or refused.

A NumPy archive (`.npz`): the member `header` is JSON in bytes, the others are the network's float32 arrays,
`job0.weight`, `job0.bias`, …, `combination0.weight`, …. What it holds is checked before it is believed.
"""

from __future__ import annotations

import io
import json
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
from berth.network.catalogue import DEMANDS, Demand
from berth.network.features import COMBINATION_FEATURES, JOB_FEATURES
from berth.network.forecast_network import INPUTS, UNITS, ForecastNetwork
from berth.network.scores import Layer, Network, Sizes, shapes_of

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

    @property
    def demand(self) -> Demand:
        """What it is shown of each job."""

    @property
    def horizon(self) -> int:
        """Steps of the horizon."""

    @property
    def step_ms(self) -> int:
        """Of one of them."""


@dataclass(frozen=True, slots=True)
class Model:
    """A trained network and what it was trained for."""

    network: Network | ForecastNetwork
    learner: str
    """Which learner made it: `rollouts`, `dqn`, …."""
    slots: int
    """How many waiting jobs it saw at once, M; it decides on any number."""
    horizon: int
    """Steps of the horizon, H."""
    step_ms: int
    """Of one of them."""
    interference: tuple[str, ...]
    """The models of interference that it was trained under."""
    workloads: tuple[str, ...] = ()
    """What it was trained on."""
    demand: Demand = "series"
    """What it is shown of each job."""
    sizes: Sizes = field(default_factory=Sizes)
    figures: Mapping[str, float] = field(default_factory=dict)
    """What came of the training: seeds, steps, seconds, ratios to the baselines."""
    command: str = ""
    """What makes it again."""


def model_bytes(model: Model) -> bytes:
    """The file; the same model gives the same bytes."""
    header: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    header |= _inputs_of(isinstance(model.network, ForecastNetwork))
    for entry in fields(model):
        if entry.name not in ("network", "sizes"):
            header[entry.name] = getattr(model, entry.name)
    header["sizes"] = model.sizes._asdict()
    header["figures"] = dict(model.figures)
    arrays = {name: np.asarray(array, np.float32) for name, array in _named(model.network).items()}
    return archive_bytes(header, arrays)


def read_model(path: Path) -> Model:
    """The model of a file; ModelError, with what was expected, where it is not whole, not ours or not for us."""
    header, arrays = read_arrays(path, FORMAT, VERSION)
    of_forecasts = "inputs" in header
    for name, ours in _inputs_of(of_forecasts).items():
        if header.get(name) != ours:
            raise ModelError(
                f"{path}: its network sees {header.get(name)!r} {name.replace('_', ' ')}; expected {ours}: it was"
                " trained by another version of berth, train it anew with `berth train`"
            )
    try:
        sizes = Sizes(*(tuple(int(width) for width in header["sizes"][name]) for name in Sizes._fields))
        model = Model(
            network=_forecast_network(path, arrays) if of_forecasts else _network(path, arrays, sizes),
            learner=str(header["learner"]),
            slots=_whole(header, "slots", 1, 12),
            horizon=_whole(header, "horizon", 1, 1000),
            step_ms=_whole(header, "step_ms", 1, 10**9),
            interference=tuple(map(str, header["interference"])),
            workloads=tuple(map(str, header["workloads"])),
            demand=header["demand"],
            sizes=sizes,
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
            f"{path}: not a whole {kind} ({error}); expected the archive that `berth train` writes"
        ) from error
    try:
        header = json.loads(found.pop("header").tobytes())
        came = (header.get("format"), header.get("version"))
    except (KeyError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: it has no header; expected a {kind}, version {version}") from error
    if came != (kind, version):
        raise ModelError(
            f"{path}: format {came[0]!r}, version {came[1]!r}; expected {kind!r}, version {version}"
        )
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


def _inputs_of(of_forecasts: bool) -> dict[str, int]:
    """How much a network sees, by which another version is told."""
    if of_forecasts:
        return {"inputs": INPUTS}
    return {"job_features": JOB_FEATURES, "combination_features": COMBINATION_FEATURES}


def _named(network: Network | ForecastNetwork) -> dict[str, Any]:
    if isinstance(network, ForecastNetwork):
        return network._asdict()
    return {
        f"{part}{at}.{which}": getattr(layer, which)
        for part in Network._fields
        for at, layer in enumerate(getattr(network, part))
        for which in Layer._fields
    }


def _forecast_network(path: Path, arrays: dict[str, NDArray[Any]]) -> ForecastNetwork:
    first, second = UNITS
    shapes = (INPUTS, first), (first,), (first, second), (second,), (second,)
    _check_arrays(path, arrays, dict(zip(ForecastNetwork._fields, shapes, strict=True)))
    return ForecastNetwork(*(arrays[name].astype(np.float64) for name in ForecastNetwork._fields))


def _check_arrays(
    path: Path, arrays: dict[str, NDArray[Any]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse arrays that are not those of a network."""
    if set(arrays) != set(expected):
        odd = sorted(set(arrays) ^ set(expected))
        raise ModelError(
            f"{path}: it has not the arrays of its network; too many or missing: {', '.join(odd)}"
        )
    for name, shape in expected.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != np.float32:
            raise ModelError(f"{path}: {name} is {array.dtype} {array.shape}; expected float32 {shape}")
        if not np.isfinite(array).all():
            raise ModelError(f"{path}: {name} has values that are not finite; expected none")


def _network(path: Path, arrays: dict[str, NDArray[Any]], sizes: Sizes) -> Network:
    job, combination = shapes_of(sizes)
    expected: dict[str, tuple[int, ...]] = {}
    for part, shapes in zip(Network._fields, (job, combination), strict=True):
        for at, (inputs, outputs) in enumerate(shapes):
            expected |= {f"{part}{at}.weight": (inputs, outputs), f"{part}{at}.bias": (outputs,)}
    _check_arrays(path, arrays, expected)
    return Network(
        *(
            tuple(
                Layer(arrays[f"{part}{at}.weight"], arrays[f"{part}{at}.bias"]) for at in range(len(shapes))
            )
            for part, shapes in zip(Network._fields, (job, combination), strict=True)
        )
    )


def _whole(header: dict[str, Any], name: str, least: int, most: int) -> int:
    value = header[name]
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; expected a whole number, {least}…{most}")
    return value
