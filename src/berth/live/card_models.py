"""Which card of the catalogue one of this machine is."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from berth.gpu_models import GPU_MODELS
from berth.model import GpuModel


@lru_cache(maxsize=1024)
def card_model(name: str, mem_mib: int) -> GpuModel:
    """The card of the catalogue that NVML's name is about, with the memory that it really has."""
    words = name.upper().replace(" ", "-").split("-")
    known = [
        model for key, model in GPU_MODELS.items() if model.mem_mib and key.upper().split("-")[0] in words
    ]
    known += [model for key, model in GPU_MODELS.items() if model.mem_mib and key.upper() in "-".join(words)]
    if not known:
        return GpuModel(name, mem_mib=mem_mib)
    near = min(known, key=lambda model: (abs(model.mem_mib - mem_mib), -len(model.name)))
    return replace(near, mem_mib=mem_mib)
