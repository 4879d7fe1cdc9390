"""Known GPU models by name: what one card has, from its maker's data sheet.

Memory and core counts are NVIDIA's (data sheets of the Tesla K80, P100, V100, T4, A10, A100, H100, H200 and
of the GeForce and TITAN boards; white papers of the Kepler, Pascal, Volta, Turing, Ampere and Hopper
architectures). A card "with 16 GB" counts as 16,384 MiB: the framebuffer that the driver reports is a little
less, and differs by driver. `pcie_mbps` is the link in one direction before protocol overhead: 15,754 MB/s
for PCIe 3.0 ×16, 31,508 for 4.0 and 63,015 for 5.0 (lanes × GT/s × 128/130 ÷ 8). K80 and M60 are
one of the two GPUs of their boards, as schedulers count them; H100 and H200 are the SXM boards.

G2 and G3 are the undisclosed models of Alibaba's openb trace (cluster-trace-gpu-v2023, README: "G1, G2, G3
are undisclosed internal GPU codes"), MISC the mixed older ones of its PAI trace (cluster-trace-gpu-v2020):
nothing but the name is public, so memory is 0, which means unknown.
"""

from __future__ import annotations

from berth.model import GpuModel

_PCIE_3 = 15_754
_PCIE_4 = 31_508
_PCIE_5 = 63_015

GPU_MODELS: dict[str, GpuModel] = {
    model.name: model
    for model in (
        GpuModel("K40M", "Kepler", 12_288, 2_880, _PCIE_3),
        GpuModel("K80", "Kepler", 12_288, 2_496, _PCIE_3),
        GpuModel("M60", "Maxwell", 8_192, 2_048, _PCIE_3),
        GpuModel("P4", "Pascal", 8_192, 2_560, _PCIE_3),
        GpuModel("P40", "Pascal", 24_576, 3_840, _PCIE_3),
        GpuModel("P100", "Pascal", 16_384, 3_584, _PCIE_3),
        GpuModel("P100M12", "Pascal", 12_288, 3_584, _PCIE_3),
        GpuModel("TITAN-XP", "Pascal", 12_288, 3_840, _PCIE_3),
        GpuModel("GTX-1080TI", "Pascal", 11_264, 3_584, _PCIE_3),
        GpuModel("V100", "Volta", 16_384, 5_120, _PCIE_3),
        GpuModel("V100M16", "Volta", 16_384, 5_120, _PCIE_3),
        GpuModel("V100M32", "Volta", 32_768, 5_120, _PCIE_3),
        GpuModel("TITAN-V", "Volta", 12_288, 5_120, _PCIE_3),
        GpuModel("T4", "Turing", 16_384, 2_560, _PCIE_3),
        GpuModel("RTX-2080TI", "Turing", 11_264, 4_352, _PCIE_3),
        GpuModel("A10", "Ampere", 24_576, 9_216, _PCIE_4),
        GpuModel("A30", "Ampere", 24_576, 3_584, _PCIE_4),
        GpuModel("A40", "Ampere", 49_152, 10_752, _PCIE_4),
        GpuModel("A100-40", "Ampere", 40_960, 6_912, _PCIE_4),
        GpuModel("A100-80", "Ampere", 81_920, 6_912, _PCIE_4),
        GpuModel("RTX-3090", "Ampere", 24_576, 10_496, _PCIE_4),
        GpuModel("RTX-4090", "Ada Lovelace", 24_576, 16_384, _PCIE_4),
        GpuModel("L4", "Ada Lovelace", 24_576, 7_424, _PCIE_4),
        GpuModel("L40S", "Ada Lovelace", 49_152, 18_176, _PCIE_4),
        GpuModel("H100", "Hopper", 81_920, 16_896, _PCIE_5),
        GpuModel("H200", "Hopper", 144_384, 16_896, _PCIE_5),
        GpuModel("G2"),
        GpuModel("G3"),
        GpuModel("MISC"),
    )
}
"""Every model of the catalogue by its name."""


def gpu_model(name: str) -> GpuModel:
    """The model of this name: from the catalogue, or one of which only the name is known."""
    return GPU_MODELS.get(name) or GpuModel(name)
