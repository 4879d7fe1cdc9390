"""What decides is what was trained: the same numbers from NumPy and JAX, and files that are whole or refused."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from berth.errors import ModelError
from berth.learning.jobsets import thesis_task
from berth.network.demands import demanded
from berth.network.forecast_network import INPUTS, new_network
from berth.network.model_file import Model, archive_bytes, model_bytes, read_model

MODEL = Model(new_network(3), "rollouts", ("mps",), ("random",), figures={"seed": 3.0})


def test_a_model_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(model_bytes(MODEL))
    assert model_bytes(MODEL) == path.read_bytes()
    found = read_model(path)
    written = jax.tree.map(np.float32, MODEL.network)
    assert jax.tree.all(jax.tree.map(np.array_equal, found.network, written))
    assert replace(found, network=MODEL.network) == MODEL


def damaged(what: str) -> bytes:
    whole = model_bytes(MODEL)
    if what == "truncated":
        return whole[: len(whole) // 2]
    if what == "text":
        return b"not a model\n"
    if what == "bits":
        middle = len(whole) // 2
        return whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    arrays = {name: array for name, array in np.load(io.BytesIO(whole)).items() if name != "header"}
    header = {"format": "berth-model", "version": 1, "inputs": INPUTS}
    if what == "foreign":
        return archive_bytes({"format": "other"}, arrays)
    if what == "version":
        return archive_bytes(header | {"version": 99}, arrays)
    if what == "inputs":
        return archive_bytes(header | {"inputs": 7}, arrays)
    if what == "header":
        return archive_bytes(header, arrays)
    if what == "older":
        return archive_bytes({name: header[name] for name in ("format", "version")}, arrays)
    if what == "demand":
        theirs = json.loads(np.load(io.BytesIO(whole))["header"].tobytes())
        return archive_bytes(theirs | {"demand": ["series"]}, arrays)
    if what == "claim":
        out, member = io.BytesIO(), io.BytesIO()
        claimed = {"descr": "<f4", "fortran_order": False, "shape": (10**14,)}
        np.lib.format.write_array_header_1_0(member, claimed)
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("first.npy", member.getvalue())
        return out.getvalue()
    if what == "encrypted":
        content = bytearray(whole)
        content[content.find(b"PK\x03\x04") + 6] |= 1
        content[content.find(b"PK\x01\x02") + 8] |= 1
        return bytes(content)
    out = io.BytesIO()
    np.savez(out, header=np.array([object()], dtype=object), allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("truncated", "not a whole berth-model"),
        ("text", "not a whole berth-model"),
        ("bits", "not a whole berth-model"),
        ("foreign", "format 'other', version None; expected 'berth-model', version 1"),
        ("version", "version 99; expected 'berth-model', version 1"),
        ("inputs", f"sees 7 inputs; expected {INPUTS}"),
        (
            "older",
            "a model of an older version of berth, which is not read any more; train it again with `berth train --out ",
        ),
        ("header", "its header is not that of a model"),
        ("pickle", "not a whole berth-model"),
        ("demand", "expected one of series"),
        ("claim", "which is 400000000000000 bytes; it has 0"),
        ("encrypted", "not a whole berth-model"),
    ],
)
def test_what_is_no_model_is_refused_with_what_was_expected(tmp_path: Path, what: str, expected: str) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(damaged(what))
    with pytest.raises(ModelError, match=expected):
        read_model(path)


@pytest.mark.parametrize("change", ["shape", "type", "nan", "missing"])
def test_arrays_that_are_not_the_networks_are_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(model_bytes(MODEL))
    with zipfile.ZipFile(path) as archive:
        header = archive.read("header.npy")
    arrays = dict(np.load(path).items())
    del arrays["header"]
    name = "first"
    if change == "missing":
        del arrays[name]
    else:
        arrays[name] = {
            "shape": arrays[name][:-1],
            "type": arrays[name].astype(np.float64),
            "nan": arrays[name] * np.nan,
        }[change]
    out = io.BytesIO()
    np.savez(out, **arrays)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("header.npy", header)
    path.write_bytes(out.getvalue())
    with pytest.raises(ModelError, match=r"first is|missing: first|first has"):
        read_model(path)


def test_a_demand_is_one_number_for_all_of_a_run_or_the_series() -> None:
    task = thesis_task()
    usage = task.series[task.applications.index("LAMMPS")].usage
    series, peak, mean = (demanded(usage, demand) for demand in ("series", "peak", "mean"))
    assert series is usage
    assert peak.shape == mean.shape == usage.shape
    assert usage[0, 1] < peak[0, 1] == 8499
    assert (peak == peak[0]).all()
    assert mean[0, 1] == round(float(usage[:, 1].mean()))
    assert demanded(usage / 1000, "mean")[0] == pytest.approx(usage.mean(axis=0) / 1000)
