"""Applications' resource-use histories: what each uses of a GPU from its start to its end, alone.

A `Profile` (in `berth.model`) is what was measured on one card; a `Series` is the same in whole numbers of one
GPU of any model, which is what simulator, policies and the learning environment compute with.
"""

from __future__ import annotations

from berth.profiles.file import (
    BEGUN,
    IN_HISTORY,
    RUNNING,
    SHARED,
    Profiles,
    checked,
    company,
    is_profile,
    keep_profile,
    profile_text,
    read_profile,
)
from berth.profiles.series import Series, begun, is_steady, peak_mem_mib, run_time_ms, series
from berth.profiles.thesis import FIRST_TRAINING_SEED, THESIS_GPU, WORKLOADS, thesis_profiles, workload_jobs
