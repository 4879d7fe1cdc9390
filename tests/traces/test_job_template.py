"""Jobs from a template cannot be told from jobs that were called into being."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import pytest

from berth.model import Job, Share
from berth.traces.job_template import JobTemplate, setter


def test_a_job_from_a_template_is_the_same_job() -> None:
    template = JobTemplate("id", "submit_ms", "work_ms", gpus=3, share=Share(500), models=("T4",))
    job = template.unfinished()
    for name, value in (("id", "a"), ("submit_ms", 1), ("work_ms", 2)):
        setter(name)(job, value)
    same = Job("a", 1, 2, gpus=3, share=Share(500), models=("T4",))
    assert (job, hash(job), repr(job)) == (same, hash(same), repr(same))
    assert pickle.loads(pickle.dumps(job)) == replace(job) == same
    assert all(hasattr(job, field.name) for field in fields(Job))


def test_a_template_needs_every_field_that_has_no_default() -> None:
    with pytest.raises(TypeError, match="no default for work_ms"):
        JobTemplate("id", "submit_ms")
