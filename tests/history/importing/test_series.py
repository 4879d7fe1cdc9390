"""GPU series of DCGM's exporter and of jobstats instead of samples of berth's own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.errors import HistoryError
from berth.history.importing.sacct import import_text
from berth.history.importing.series import import_series
from berth.history.store.folder import SEGMENTS, History, open_history
from berth.history.store.import_result import ImportResult, Options
from tests.examples import examples
from tests.history import exports

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


def matrix(*series: tuple[dict[str, str], list[tuple[float, object]]]) -> dict[str, object]:
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
            values: list[tuple[float, object]] = [(t, before if t < BASE_S + 600 else after) for t in times]
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
    assert (result.imported, result.rejected_count) == (320, 0)
    assert use(history) == [(0.5, 0.25), (0.4, 0.0625)]


@pytest.mark.slow
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


@pytest.mark.slow
def test_two_clusters_whose_nodes_have_the_same_names_keep_each_their_own(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    import_text(history, tmp_path / "f", Options("d"))
    file = jobstats(tmp_path / "a.json")
    import_series(history, [file], "c")
    assert use(history) == [(0.5, 0.25), (0.4, 0.0625)]
    second = import_series(history, [file], "d")
    assert (second.imported, second.updated) == (320, 0)
    assert use(history) == [(0.5, 0.25), (0.4, 0.0625)] * 2


def dcgm(
    index: str, job: str, values: Sequence[object], name: str = "DCGM_FI_DEV_GPU_UTIL"
) -> dict[str, object]:
    """A series of DCGM's exporter, every 60 s from BASE_S, of one GPU and the label's job; None: no value."""
    labels = {"__name__": name, "Hostname": "node1", "gpu": index, "UUID": f"GPU-{index}", "hpc_job": job}
    return matrix(
        (labels, [(BASE_S + 60 * at, value) for at, value in enumerate(values) if value is not None])
    )


def imported(
    folder: Path, *answers: dict[str, object]
) -> tuple[dict[str, tuple[object, object]], ImportResult]:
    """The means of use and of memory by job, and what the import said."""
    history = a_history(folder)
    (folder / "d.json").write_text(json.dumps(answers))
    result = import_series(history, [folder / "d.json"])
    rounded = {
        r.job_id: tuple(None if v is None else round(v, 4) for v in (r.gpu_use_mean, r.gpu_mem_mean))
        for r in history.records()
    }
    return {job: (found[0], found[1]) for job, found in rounded.items()}, result


def test_two_jobs_on_one_gpu_keep_it_both(tmp_path: Path) -> None:
    rows = [
        exports.line(JobIDRaw=job, Submit=BASE_S, Eligible=BASE_S, Start=BASE_S, End=BASE_S + 600)
        for job in (1, 2)
    ]
    history = open_history(tmp_path / "h")
    import_text(history, exports.write(tmp_path / "f", rows), Options("c"))
    answers = [dcgm("0", "1", [50] * 10), dcgm("1", "1", [100] * 10), dcgm("0", "2", [50] * 10)]
    for turn, order in enumerate((answers, answers[::-1])):
        (tmp_path / "d.json").write_text(json.dumps(order))
        result = import_series(history, [tmp_path / "d.json"])
        assert result.imported == (0 if turn else 30)
        assert {r.job_id: r.gpu_use_mean for r in history.records()} == {"1": 0.75, "2": 0.5}


def test_what_has_no_series_of_memory_has_no_mean_of_it(tmp_path: Path) -> None:
    means, _ = imported(tmp_path, dcgm("0", "1", [80] * 10))
    assert means == {"1": (0.8, None), "2": (None, None)}


def test_values_that_cannot_be_are_named_and_the_others_count(tmp_path: Path) -> None:
    good: list[object] = [80] * 10
    bad: list[object] = [80, 80, 150, -4, "1e300", "x", "+Inf", "NaN", 80, 80]
    memory = [
        dcgm("0", "1", [part] * 10, f"DCGM_FI_DEV_FB_{name}") for name, part in (("USED", 1), ("FREE", 3))
    ]
    means, result = imported(tmp_path, dcgm("0", "1", bad), *memory)
    assert means["1"] == (0.8, 0.25)
    at = f"{tmp_path / 'd.json'}, "
    assert sorted((row.where.removeprefix(at), row.why) for row in result.rejected) == [
        (f"DCGM_FI_DEV_GPU_UTIL of node1/0 at {BASE_S + 120}: 150", "not 0 to 100"),
        (f"DCGM_FI_DEV_GPU_UTIL of node1/0 at {BASE_S + 180}: -4", "not 0 to 100"),
        (f"DCGM_FI_DEV_GPU_UTIL of node1/0 at {BASE_S + 240}: 1e+300", "not 0 to 100"),
        (f"DCGM_FI_DEV_GPU_UTIL of node1/0 at {BASE_S + 360}: inf", "not 0 to 100"),
        (f"result[0] at {BASE_S + 300}: 'x'", "no number"),
    ]
    (tmp_path / "again").mkdir()
    assert imported(tmp_path / "again", dcgm("0", "1", good), *memory)[0] == means


def test_infinite_memory_is_named_and_does_not_count(tmp_path: Path) -> None:
    used: list[object] = [1, "+Inf", 1]
    memory = [dcgm("0", "1", used, "DCGM_FI_DEV_FB_USED"), dcgm("0", "1", [3] * 3, "DCGM_FI_DEV_FB_FREE")]
    means, result = imported(tmp_path, *memory)
    assert means["1"] == (None, 0.25)
    assert [row.why for row in result.rejected] == ["not 0 or more"]


def test_what_is_no_series_is_told_in_plain_words(tmp_path: Path) -> None:
    odd = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}}]}}
    _, result = imported(tmp_path, odd, dcgm("0", "1", [80] * 10))
    assert [row.why for row in result.rejected] == [
        "no series: expected 'metric' with labels, and 'values' of [seconds, \"value\"]"
    ]


def test_pieces_of_an_hour_add_up(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    for name, values in (("a", [100] * 5), ("b", [None] * 5 + [0] * 5)):
        (tmp_path / name).write_text(json.dumps(dcgm("0", "1", values)))
        import_series(history, [tmp_path / name])
    assert [r.gpu_use_mean for r in history.records()] == [0.5, None]


def test_metrics_that_come_one_by_one_are_put_together(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    metrics = {"GPU_UTIL": 60, "FB_USED": 1, "FB_FREE": 3}
    for name, value in metrics.items():
        (tmp_path / name).write_text(json.dumps(dcgm("0", "1", [value] * 10, f"DCGM_FI_DEV_{name}")))
        import_series(history, [tmp_path / name])
    assert use(history) == [(0.6, 0.25)]


@pytest.mark.slow
def test_metrics_that_were_asked_for_at_other_seconds_are_put_together_too(tmp_path: Path) -> None:
    def at(name: str, away_s: int, value: int) -> dict[str, object]:
        labels = {
            **{"__name__": f"DCGM_FI_DEV_{name}", "Hostname": "node1"},
            **{"gpu": "0", "UUID": "GPU-0", "hpc_job": "1"},
        }
        return matrix((labels, [(BASE_S + away_s + 30 * step, value) for step in range(20)]))

    history = a_history(tmp_path)
    for name, away_s, value in (("FB_FREE", 0, 3), ("GPU_UTIL", 3, 60), ("FB_USED", 11, 1)):
        (tmp_path / name).write_text(json.dumps(at(name, away_s, value)))
        import_series(history, [tmp_path / name])
    assert use(history) == [(0.6, 0.25)]


@pytest.mark.slow
def test_which_job_had_the_gpu_may_be_told_last(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    answers = json.loads(jobstats(tmp_path / "all").read_text())
    named = [each for each in answers if "jobId" in each["data"]["result"][0]["metric"]["__name__"]]
    (tmp_path / "use").write_text(json.dumps([each for each in answers if each not in named]))
    (tmp_path / "jobs").write_text(json.dumps(named))
    import_series(history, [tmp_path / "use"])
    assert use(history) == []
    import_series(history, [tmp_path / "jobs"])
    assert use(history) == [(0.5, 0.25), (0.4, 0.0625)]


@pytest.mark.slow
def test_a_job_keeps_what_was_measured_when_another_comes_to_the_same_gpu_and_hour(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    for job, begin in (("1", 0), ("2", 10)):
        (tmp_path / job).write_text(json.dumps(dcgm("0", job, [None] * begin + [80 - begin] * 10)))
        import_series(history, [tmp_path / job])
    assert use(history) == [(0.8, 0.0), (0.7, 0.0)]


def test_each_try_of_a_job_has_what_was_seen_of_it_in_one_hour(tmp_path: Path) -> None:
    rows = [
        exports.line(
            JobIDRaw=1,
            State=state,
            Submit=BASE_S + begin,
            Eligible=BASE_S + begin,
            Start=BASE_S + begin,
            End=BASE_S + begin + 600,
            AllocTRES="cpu=1,gres/gpu=1",
        )
        for begin, state in ((0, "NODE_FAIL"), (1800, "COMPLETED"))
    ]
    history = open_history(tmp_path / "h")
    import_text(history, exports.write(tmp_path / "f", rows), Options("c"))
    (tmp_path / "d").write_text(json.dumps(dcgm("0", "1", [90] * 10 + [None] * 20 + [30] * 10)))
    import_series(history, [tmp_path / "d"])
    assert [r.gpu_use_mean for r in history.records()] == [pytest.approx(0.9), pytest.approx(0.3)]


def rows_kept(history: History) -> list[tuple[object, ...]]:
    """All that the history has measured, in order."""
    with history.database() as database:
        files = [str(history.folder / name) for name in history.index().usage]
        return database.execute("FROM read_parquet(?) ORDER BY ALL", [files]).fetchall() if files else []


METRICS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "nvidia_gpu_jobId")
told_values = st.lists(
    st.tuples(
        st.sampled_from(METRICS),
        st.sampled_from(("0", "1")),
        st.sampled_from(("", "1", "2")),
        # Three hours, with much about the turns of the hours, where a value counts into the next one.
        st.one_of(st.integers(0, 10_799), st.integers(3560, 3640), st.integers(7160, 7240)),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@given(told=told_values, data=st.data())
def test_what_series_say_is_the_same_however_their_import_is_cut_or_repeated(
    told: list[tuple[str, str, str, int, int]], data: st.DataObject
) -> None:
    answers = [
        matrix(
            (
                {"__name__": name, "Hostname": "node1", "gpu": gpu, **({"hpc_job": job} if job else {})},
                [(BASE_S + second, value)],
            )
        )
        for name, gpu, job, second, value in told
    ]
    shuffled = data.draw(st.permutations(answers))
    ends = sorted({*data.draw(st.lists(st.integers(1, len(answers)), max_size=4)), len(answers)})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, cut = open_history(folder / "whole"), open_history(folder / "cut")
        (folder / "all").write_text(json.dumps(answers))
        import_series(whole, [folder / "all"])
        for begin, end in zip([0, *ends], ends, strict=False):
            # A piece repeats what came before it: nothing may count twice.
            (folder / "part").write_text(json.dumps(shuffled[max(begin - 3, 0) : end]))
            import_series(cut, [folder / "part"])
        assert rows_kept(cut) == rows_kept(whole)
        again = import_series(cut, [folder / "all"])
        assert (again.read, again.imported, again.updated) == (len(told), 0, 0)
        assert rows_kept(cut) == rows_kept(whole)


@pytest.mark.slow
def test_many_imports_are_kept_in_few_files(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    for minute in range(SEGMENTS + 2):
        (tmp_path / "d").write_text(json.dumps(dcgm("0", "1", [None] * (minute % 10) + [80])))
        import_series(history, [tmp_path / "d"])
        values = [None] * (minute % 10) + [80 + minute // 10]
        (tmp_path / "d").write_text(json.dumps(dcgm("0", "1", values)))
        import_series(history, [tmp_path / "d"])
    assert len(history.index().series) <= SEGMENTS
    counted = {name for name in history.index().files() if name.startswith("series/")}
    assert {f"series/{path.name}" for path in (tmp_path / "h" / "series").iterdir()} == counted
    assert len(counted) <= 2 * SEGMENTS  # with what the last imports can be taken back by
    last = [max(minute for minute in range(SEGMENTS + 2) if minute % 10 == second) for second in range(10)]
    assert use(history) == [(round(sum(80 + minute // 10 for minute in last) / 1000, 4), 0.0)]
