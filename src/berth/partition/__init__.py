"""Partitions of a GPU: limits of memory and compute for process trees and containers, kept by libberth.so."""

from berth.partition.growth import Demand, Granter, Watching, Wish
from berth.partition.hardware import Hardware
from berth.partition.launch import Summary, run
from berth.partition.library import fake_driver_folder, library_path
from berth.partition.lifecycle import (
    create,
    create_mig,
    remove,
    resize,
)
from berth.partition.regions import (
    Access,
    Limit,
    Partition,
    Process,
    Refusal,
    Unreadable,
    access_of,
    find,
    partitions,
    regions,
    use_of,
)
from berth.partition.sizes import mem_mib
