"""What it costs to move a job off its GPUs into the memory of its node, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from berth.cluster import Running
from berth.errors import SettingError
from berth.model import Node


@dataclass(frozen=True, slots=True)
class Suspension:
    """How long a suspension and a resumption take. All GPUs of a job copy at once.

    The default speeds are rounded from an H200 with driver 580, which gave 1,700 to 2,400 MB/s away and 7,400 to 7,800
    back (`bench/partition_real_gpu.py`).
    """

    mbps: int = 2000
    """How fast a GPU's memory is copied to that of its node, MB/s, unless its model's PCIe link is slower."""
    back_mbps: int = 7000
    """How fast it is copied back, MB/s, under the same condition."""
    setup_ms: int = 500
    """To stop the job's processes, or let them go on, whatever they hold."""

    def __post_init__(self) -> None:
        if min(self.mbps, self.back_mbps) < 1 or self.setup_ms < 0:
            raise SettingError(
                f"a suspension copies {self.mbps} MB/s away and {self.back_mbps} MB/s back, and needs {self.setup_ms}"
                " ms besides; expected speeds of 1 MB/s or more, and 0 ms or more"
            )

    def takes_ms(self, run: Running, held_mib: int, nodes: Sequence[Node], *, back: bool = False) -> int:
        """How long it takes away from the GPU, or back, for a run that holds this much of each of its GPUs."""
        links = [model.pcie_mbps for slot in run.slots if (model := nodes[slot.node].gpu_model) is not None]
        mbps = min([self.back_mbps if back else self.mbps, *(link for link in links if link)])
        return self.setup_ms + -(-(held_mib << 20) // (mbps * 1000))
