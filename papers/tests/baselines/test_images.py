"""The network of images as a file, and the policy that decides by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from berth.errors import ModelError
from berth.network.model_file import archive_bytes
from berth.policies import make_policy
from berth_papers.baselines.images import ImageModel, image_model_bytes, read_image_model


def test_a_network_of_images_comes_back_as_it_was_written_or_is_refused(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    shapes = [(8, 3), (2, 8, 3), (2, 3), (3,), (3, 4), (4,)]
    arrays = [draw.normal(size=shape).astype(np.float32) for shape in shapes]
    model = ImageModel(*arrays, 5000, ("mps",), "dqn", {"seed": 1.0}, "berth train --learner dqn")
    path = tmp_path / "dqn.npz"
    path.write_bytes(image_model_bytes(model))
    found = read_image_model(path)
    assert (found.slots, found.horizon, found.step_ms, found.command) == (2, 2, 5000, model.command)
    assert np.array_equal(found.jobs, model.jobs)
    path.write_bytes(image_model_bytes(ImageModel(*arrays[:5], arrays[5][:3], 5000, ("mps",))))
    with pytest.raises(ModelError, match=r"offset is \(3,\); expected finite numbers \(4,\)"):
        read_image_model(path)


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="no model 'none'"):
        make_policy("dqn?model=none")


def test_a_model_of_an_older_berth_is_refused_with_the_command_that_makes_it_anew(tmp_path: Path) -> None:
    old = tmp_path / "old.npz"
    old.write_bytes(archive_bytes({"format": "berth-model", "version": 1, "learner": "dqn"}, {}))
    with pytest.raises(ModelError, match=rf"made anew with `berth train --learner dqn --out {old}`$"):
        read_image_model(old)
