"""Advice on limits: what other limits, or shared GPUs, would have done, by replaying the cluster's own history."""

from __future__ import annotations

from berth.advice.advise import Advice, advise
from berth.advice.proposals import Proposal
from berth.advice.workload import Workload, workload_of
