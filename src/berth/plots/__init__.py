"""Runs and curves into Plotly figures; no files are read or written.

A policy has one colour through all figures (Okabe and Ito, Color Universal Design, 2008), for eyes of every
kind, on a light page and on a dark one. Texts that come from data are escaped: Plotly reads markup in them.
"""

from berth.plots.cluster_map import cluster_map
from berth.plots.curves import (
    allocation_over_time,
    completion_cdf,
    headline,
    inflation_allocation,
    inflation_fragmentation,
    queue_over_time,
    waiting_cdf,
)
from berth.plots.style import Style, policy_styles

__all__ = [
    "Style",
    "allocation_over_time",
    "cluster_map",
    "completion_cdf",
    "headline",
    "inflation_allocation",
    "inflation_fragmentation",
    "policy_styles",
    "queue_over_time",
    "waiting_cdf",
]
