"""What a node's jobs do with its GPUs, measured through NVML at an interval and kept in a spool."""

from __future__ import annotations
