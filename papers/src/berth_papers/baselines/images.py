"""The thesis's own network, of images, as one file of plain arrays and as a function of NumPy.

Oh 2019, section IV.2: one hidden layer over the images of the cluster and of every virtual job slot, and the backlog.
The image of a virtual slot is the sum of its members' images: a job's weights are those of all slots that it is in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from berth.arrays import FloatArray
from berth.errors import ModelError
from berth.network.model_file import archive_bytes, read_arrays

FORMAT = "berth-image-model"
VERSION = 1
ARRAYS = ("cluster", "jobs", "backlog", "bias", "action", "offset")
BACKLOG = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class ImageModel:
    """A trained network of images and what it was trained for. Letters: M slots, H steps, N hidden units, C = 2^M."""

    cluster: FloatArray  # (H·4, N)
    jobs: FloatArray  # (M, H·4, N)
    backlog: FloatArray  # (2, N)
    bias: FloatArray  # (N,)
    action: FloatArray  # (N, C)
    offset: FloatArray  # (C,)
    step_ms: int
    """Of one step of the horizon."""
    interference: tuple[str, ...]
    """The models of interference that it was trained under."""
    learner: str = "dqn"
    figures: Mapping[str, float] = field(default_factory=dict)
    """What came of the training."""
    command: str = ""
    """What makes it again."""

    @property
    def slots(self) -> int:
        """How many waiting jobs it sees, M."""
        return int(self.jobs.shape[0])

    @property
    def horizon(self) -> int:
        """Steps of the horizon, H."""
        return int(self.cluster.shape[0]) // 4


def image_scores(model: ImageModel, cluster: Any, jobs: Any, backlog: Any) -> FloatArray:
    """Scores of the actions, (W, C), from images (W, H, 4) and (W, M, H, 4) as fractions of the card, and (W, 2)."""
    worlds = len(cluster)
    flat = jobs.reshape(worlds, -1)
    hidden = cluster.reshape(worlds, -1) @ model.cluster + flat @ model.jobs.reshape(flat.shape[1], -1)
    hidden = np.maximum(hidden + backlog @ model.backlog * BACKLOG + model.bias, 0)
    return np.asarray(hidden @ model.action + model.offset)


def image_model_bytes(model: ImageModel) -> bytes:
    """The file; the same model gives the same bytes."""
    header: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    header |= {one.name: getattr(model, one.name) for one in fields(model) if one.name not in ARRAYS}
    header["figures"] = dict(model.figures)
    return archive_bytes(header, {name: np.asarray(getattr(model, name), np.float32) for name in ARRAYS})


def read_image_model(path: Path) -> ImageModel:
    """The model of a file; ModelError, with what was expected, where it is not whole or not ours."""
    header, arrays = read_arrays(path, FORMAT, VERSION)
    if set(arrays) != set(ARRAYS):
        raise ModelError(
            f"{path}: its arrays are {', '.join(sorted(arrays))}; expected {', '.join(sorted(ARRAYS))}"
        )
    try:
        slots, pixels, hidden = arrays["jobs"].shape
        cluster, jobs, backlog, bias, action, offset = (arrays[name] for name in ARRAYS)
        interference, step_ms = tuple(map(str, header["interference"])), int(header["step_ms"])
        figures = {str(key): float(value) for key, value in header["figures"].items()}
        learner, command = str(header["learner"]), str(header["command"])
        model = ImageModel(
            cluster, jobs, backlog, bias, action, offset, step_ms, interference, learner, figures, command
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: its header is not that of a model of images: {error!r}") from error
    shapes = [
        (pixels, hidden),
        (slots, pixels, hidden),
        (2, hidden),
        (hidden,),
        (hidden, 1 << slots),
        (1 << slots,),
    ]
    for name, shape in zip(ARRAYS, shapes, strict=True):
        if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            raise ModelError(f"{path}: {name} is {arrays[name].shape}; expected finite numbers {shape}")
    if pixels % 4 or model.step_ms < 1:
        raise ModelError(
            f"{path}: {pixels} pixels in steps of {model.step_ms} ms; expected four resources a step"
        )
    return model
