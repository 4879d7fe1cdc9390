"""A training under way as one file: a killed training goes on from it as if nothing had happened.

A NumPy archive like a model's (`berth.network.model_file`): every array of the learner's state, and a header that
says what the training is. It is written beside its place and moved there whole; it is never unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from berth.errors import ModelError
from berth.files import whole_file
from berth.network.model_file import archive_bytes, read_arrays

FORMAT = "berth-checkpoint"
VERSION = 1


class Checkpoint(NamedTuple):
    """What is kept of a training."""

    state: Any
    """Trees of arrays: the learner's state, and what else is to go on."""
    notes: dict[str, Any]
    """Plain numbers and lists: iterations done, the curve so far."""


def write_checkpoint(path: Path, training: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Write it whole or not at all. `training` says what is trained, and how, in plain values."""
    header = {"format": FORMAT, "version": VERSION, "training": dict(training), "notes": checkpoint.notes}
    arrays = {name: np.asarray(_plain(leaf)) for name, leaf in _named(checkpoint.state).items()}
    with whole_file(path) as temporary:
        temporary.write_bytes(archive_bytes(header, arrays))


def read_checkpoint(path: Path, training: Mapping[str, Any], like: Any) -> Checkpoint:
    """The checkpoint of this very training; `like` is a state of the same structure.

    Raises ModelError, with what was expected, for a file that is not whole, not ours, of another version or of
    another training.
    """
    header, arrays = _of_training(path, training)
    expected = _named(like)
    if set(arrays) != set(expected):
        odd = sorted(set(arrays) ^ set(expected))[:3]
        raise ModelError(
            f"{path}: it has not the arrays of its training: {', '.join(odd)}, too many or missing"
        )
    leaves = []
    for name, leaf in expected.items():
        want = jax.eval_shape(_plain, leaf)
        came = arrays[name]
        if came.shape != want.shape or came.dtype != want.dtype:
            raise ModelError(
                f"{path}: {name} is {came.dtype} {came.shape}; expected {want.dtype} {want.shape}"
            )
        leaves.append(_as_was(came, leaf))
    return Checkpoint(jax.tree.unflatten(jax.tree.structure(like), leaves), header["notes"])


def checked_notes(path: Path, training: Mapping[str, Any]) -> dict[str, Any]:
    """What the checkpoint of this very training notes, without its state: soon told, before anything is compiled.

    Raises ModelError as `read_checkpoint` does.
    """
    notes: dict[str, Any] = _of_training(path, training)[0]["notes"]
    return notes


def _of_training(path: Path, training: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a checkpoint; ModelError where it is not whole, not ours or of another training."""
    header, arrays = read_arrays(path, FORMAT, VERSION)
    theirs, ours = header.get("training"), json.loads(json.dumps(dict(training)))
    if not isinstance(theirs, dict) or not isinstance(header.get("notes"), dict):
        raise ModelError(f"{path}: its header is not that of a checkpoint; expected one of `berth train`")
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise ModelError(
                f"{path}: it is of another training: its {name} is {theirs.get(name)!r}; expected {ours.get(name)!r}."
                " Train with that, or into another folder"
            )
    return header, arrays


def _named(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _as_was(array: NDArray[Any], leaf: Any) -> Any:
    return jax.random.wrap_key_data(jax.numpy.asarray(array)) if _is_key(leaf) else jax.numpy.asarray(array)
