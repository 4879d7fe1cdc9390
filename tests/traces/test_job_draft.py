"""Jobs that were drafts cannot be told from jobs that were called into being."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from berth.model import Job, Share
from berth.traces.job_table import draft, finished


def test_a_finished_draft_is_the_same_job() -> None:
    job = finished(draft("a", 1, 2, gpus=3, share=Share(500), models=("T4",)))
    same = Job("a", 1, 2, gpus=3, share=Share(500), models=("T4",))
    assert (type(job), job, hash(job), repr(job)) == (Job, same, hash(same), repr(same))
    assert pickle.loads(pickle.dumps(job)) == replace(job) == same
    assert all(hasattr(job, field.name) for field in fields(Job))
    with pytest.raises(FrozenInstanceError):
        job.gpus = 4  # type: ignore[misc]


def test_a_draft_needs_every_field_that_has_no_default() -> None:
    with pytest.raises(TypeError, match="work_ms"):
        draft("a", 1)
