"""berth packs, partitions and accounts for shared GPUs.

    >>> import berth
    >>> berth.compare(berth.read_trace("synthetic:demo"), policies=["fgd", "sjf+best-fit"]).table()

Everything here is loaded when it is first used, so that `import berth` costs nothing.
"""

from __future__ import annotations

from importlib import import_module

from berth.version import __version__ as __version__

TYPE_CHECKING = False  # as in typing, whose import takes a tenth of a client's time
if TYPE_CHECKING:
    from typing import Any

    from berth.cluster import Cluster, Queue
    from berth.engine import simulate
    from berth.errors import BerthError
    from berth.experiments.compare import Comparison, Conditions, compare
    from berth.experiments.compare.page import write_report
    from berth.experiments.sweep import Sweep, sweep
    from berth.interference import no_interference
    from berth.model import (
        Event,
        EventKind,
        Evict,
        GpuModel,
        GpuSlot,
        Job,
        Node,
        Outage,
        Placement,
        Record,
        Resize,
        Resume,
        Share,
        WakeAt,
    )
    from berth.policies import Setting, make_policy
    from berth.traces import read, read_nodes, read_trace

__all__ = [
    "BerthError",
    "Cluster",
    "Comparison",
    "Conditions",
    "Event",
    "EventKind",
    "Evict",
    "GpuModel",
    "GpuSlot",
    "Job",
    "Node",
    "Outage",
    "Placement",
    "Queue",
    "Record",
    "Resize",
    "Resume",
    "Setting",
    "Share",
    "Sweep",
    "WakeAt",
    "compare",
    "make_policy",
    "no_interference",
    "read",
    "read_nodes",
    "read_trace",
    "simulate",
    "sweep",
    "write_report",
]

_HOME = {
    "BerthError": "errors",
    "Cluster": "cluster",
    "Comparison": "experiments.compare",
    "Conditions": "experiments.compare",
    "compare": "experiments.compare",
    "make_policy": "policies",
    "Queue": "cluster",
    "Setting": "policies",
    "no_interference": "interference",
    "simulate": "engine",
    "Sweep": "experiments.sweep",
    "sweep": "experiments.sweep",
    "write_report": "experiments.compare.page",
    "read": "traces",
    "read_nodes": "traces",
    "read_trace": "traces",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'berth' has no attribute '{name}'")
    return getattr(import_module(f"berth.{_HOME.get(name, 'model')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
