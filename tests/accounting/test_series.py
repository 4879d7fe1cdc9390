"""GPU series of DCGM's exporter and of jobstats instead of samples of berth's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from berth.errors import HistoryError
from berth.history.folder import History, open_history
from berth.history.sacct import import_text
from berth.history.series import import_series
from berth.history.staging import Options

from . import exports

BASE_S = 1_767_225_600


def a_history(folder: Path) -> History:
    """Job 1 on two GPUs for ten minutes from BASE_S, job 2 on one right after it."""
    rows = [
        exports.line(JobIDRaw=1, Submit=BASE_S, Eligible=BASE_S, Start=BASE_S, End=BASE_S + 600),
        exports.line(
            JobIDRaw=2,
            Submit=BASE_S,
            Eligible=BASE_S,
            Start=BASE_S + 600,
            End=BASE_S + 1200,
            AllocTRES="cpu=1,gres/gpu=1",
        ),
    ]
    history = open_history(folder / "h")
    import_text(history, exports.write(folder / "f", rows), Options("c"))
    return history


def matrix(*series: tuple[dict[str, str], list[tuple[float, float]]]) -> dict[str, object]:
    result = [{"metric": labels, "values": [[t, str(v)] for t, v in values]} for labels, values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def jobstats(path: Path, begin_s: int = BASE_S, end_s: int = BASE_S + 1200) -> Path:
    """Two GPUs of one node every 30 s; job 1 has both, then job 2 has the first."""
    times = range(begin_s, end_s, 30)
    answers = []
    for minor, first, then in (("0", 80, 40), ("1", 20, 0)):
        labels = {"instance": "node1:9445", "minor_number": minor, "uuid": f"GPU-{minor}"}
        for name, before, after in (
            ("nvidia_gpu_duty_cycle", first, then),
            ("nvidia_gpu_memory_used_bytes", 4 * 2**30, 2**30),
            ("nvidia_gpu_memory_total_bytes", 16 * 2**30, 16 * 2**30),
            ("nvidia_gpu_jobId", 1, 2 if minor == "0" else 0),
        ):
            values = [(t, before if t < BASE_S + 600 else after) for t in times]
            answers.append(matrix(({"__name__": name, **labels}, values)))
    path.write_text(json.dumps(answers))
    return path


def use(history: History) -> list[tuple[object, object]]:
    return [
        (round(r.gpu_use_mean or 0, 4), round(r.gpu_mem_mean or 0, 4))
        for r in history.records()
        if r.gpu_use_mean is not None
    ]


def test_jobstats_series_become_the_means_of_jobs(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    result = import_series(history, [jobstats(tmp_path / "a.json")])
    assert (result.imported, result.rejected_count) == (3, 0)
    assert use(history) == [(0.5, 0.25), (0.4, 0.0625)]


def test_pieces_that_overlap_count_once(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    import_series(history, [jobstats(tmp_path / "a.json", end_s=BASE_S + 900)])
    import_series(history, [jobstats(tmp_path / "b.json")])
    again = import_series(history, [jobstats(tmp_path / "a.json", end_s=BASE_S + 900)])
    assert (again.imported, again.updated) == (0, 0)
    assert use(history) == [(0.5, 0.25), (0.4, 0.0625)]


def test_the_text_of_dcgms_exporter_is_read(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    lines = ["# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).", "# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
    for second in range(0, 600, 15):
        for index, percent in (("0", 60), ("1", 30)):
            labels = f'{{gpu="{index}",UUID="GPU-{index}",Hostname="node1.site",hpc_job="1",modelName="A \\"B\\""}}'
            at = (BASE_S + second) * 1000
            lines += [
                f"DCGM_FI_DEV_GPU_UTIL{labels} {percent} {at}",
                f"DCGM_FI_DEV_FB_USED{labels} 1024 {at}",
                f"DCGM_FI_DEV_FB_FREE{labels} 3072 {at}",
                f"DCGM_FI_DEV_POWER_USAGE{labels} 200.5 {at}",
            ]
    lines += ['DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0', "broken {", "DCGM_FI_DEV_GPU_UTIL 7"]
    path = tmp_path / "metrics.txt"
    path.write_text("\n".join(lines) + "\n")
    result = import_series(history, [path])
    assert use(history) == [(0.45, 0.25)]
    assert [row.why for row in result.rejected] == [
        "no series of GPU use that is known",
        "no line of Prometheus' text form",
        "no label that tells the node (Hostname, instance) or the GPU",
    ]


@pytest.mark.parametrize(("text", "words"), [("{", "no whole JSON"), ('{"data": 1}', "holds no matrix")])
def test_what_is_no_series_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(HistoryError, match=words):
        import_series(open_history(tmp_path / "h"), [tmp_path / "x"])


def test_two_clusters_whose_nodes_have_the_same_names_keep_each_their_own(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    import_text(history, tmp_path / "f", Options("d"))
    file = jobstats(tmp_path / "a.json")
    import_series(history, [file], "c")
    assert use(history) == [(0.5, 0.25), (0.4, 0.0625)]
    second = import_series(history, [file], "d")
    assert (second.imported, second.updated) == (3, 0)
    assert use(history) == [(0.5, 0.25), (0.4, 0.0625)] * 2
