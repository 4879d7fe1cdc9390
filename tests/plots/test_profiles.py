from berth.plots.profiles import profile_figure
from berth.profiles import thesis_profiles


def test_a_profile_is_drawn_as_steps_with_its_memory_below() -> None:
    profile = thesis_profiles()["QMCPACK"]
    figure = profile_figure(profile)
    gpu, cores, pcie, memory = figure.data
    assert [trace.name for trace in figure.data] == ["GPU", "GPU cores", "PCIe", "GPU memory"]
    assert (len(gpu.x), gpu.x[-1], gpu.line.shape) == (39, 190, "hv")
    assert sorted(set(gpu.y)) == [35, 60, 90]
    assert [round(value) for value in memory.y] == [0] * 19 + [5_135] * 20
    assert figure.layout.yaxis2.range == (0, 1.05 * 12_288)
    assert (max(cores.y), max(pcie.y)) == (45, 2)
    assert figure.layout.title.text == "QMCPACK alone on TITAN-XP-THESIS"
