"""`berth experiment pai`: the publisher's simulator to its printed digits, and its procedure step by step."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from berth.errors import SettingError, TraceError
from berth_papers.pai import pai, read_rows, sample

HEADER = (
    "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user,user_dur,group_dur,group_gpu_dur\n"
)


def test_the_publishers_simulator_gives_the_same_on_the_rows_at_hand(
    real_data: Callable[[str], Path],
) -> None:
    """Expected: what `run_simulator.py -n 1500 -g 100 -r 100` of the publisher printed for this file."""
    path = real_data("pai_v2020/pai2020_subset_via_plebiscitotest.csv.gz")
    found = pai(str(path), jobs=1500, gpus=100, rate=100)
    assert [
        (f"{one.order},{one.completion_s:.2f},{one.wait_s:.2f},{one.makespan_s:.0f},{one.jobs}")
        for one in found
    ] == ["SJF,6813.12,2106.63,152632,1500", "FIFO,11198.21,6491.72,153072,1500"]


def write(path: Path, rows: int) -> str:
    draw = random.Random(5)
    lines = []
    for number in range(rows):
        gpus, cpus = draw.choice(("0.5", "1.0", "2.0", "0")), draw.choice(("4.0", "12", ""))
        lines.append(
            f"{number},{draw.choice('112')},{draw.randrange(500)},{cpus},{gpus},T4,{draw.choice((0, 1, 7.9, 40))},u,"
            f"{draw.randrange(40)}.5,{draw.randrange(40)},{draw.randrange(40)}.25\n"
        )
    path.write_text(HEADER + "".join(lines))
    return str(path)


@pytest.mark.parametrize(("rate", "gpus"), [(7, 4), (40, 6), (-1, 5)])
def test_the_procedure_second_by_second_gives_the_same(rate: int, gpus: int, tmp_path: Path) -> None:
    path = write(tmp_path / "sample.csv", 60)
    rows = sample(read_rows(path, 1000), 50, 42)
    keys = {"SJF": lambda row: row.duration_s, "SJG": lambda row: row.estimates[1]}
    for order, key in keys.items():
        arrive = [row.submit_s if rate < 0 else place // rate * 60 for place, row in enumerate(rows)]
        waiting = sorted(range(50), key=lambda place: (key(rows[place]), rows[place].number))
        free_gpu, free_cpu = 100 * gpus, 100 * round(23.22 * gpus)
        running: list[tuple[int, int]] = []
        took: list[int] = []
        now_s = 0
        while waiting or running:
            for end_s, place in [run for run in running if run[0] == now_s]:
                running.remove((end_s, place))
                free_gpu += rows[place].gpu_pct * rows[place].instances
                free_cpu += rows[place].cpu_pct * rows[place].instances
                took += [now_s - arrive[place]] * rows[place].instances
            for place in list(waiting):
                row = rows[place]
                gpu, cpu = row.gpu_pct * row.instances, row.cpu_pct * row.instances
                if arrive[place] <= now_s and gpu <= free_gpu and cpu <= free_cpu:
                    waiting.remove(place)
                    free_gpu, free_cpu = free_gpu - gpu, free_cpu - cpu
                    running.append((now_s + row.duration_s, place))
            now_s += 1
        (found,) = pai(path, jobs=50, gpus=gpus, rate=rate, orders=[order])
        assert (found.completion_s, found.makespan_s) == (pytest.approx(sum(took) / len(took)), now_s)


def test_bad_rows_and_settings_are_told(tmp_path: Path) -> None:
    path = tmp_path / "sample.csv"
    path.write_text(HEADER + "1,1,0,1,1,T4,soon,u,1,1,1\n")
    with pytest.raises(TraceError, match="line 2, column 'duration': 'soon'"):
        pai(str(path))
    with pytest.raises(
        SettingError, match="no order 'LIFO' for this file; there are SJF, SJU, SJG, SJGG, FIFO"
    ):
        pai(write(path, 20), jobs=10, orders=["LIFO"])


@pytest.mark.slow
def test_the_command_prints_json_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "sample.csv", 20)
    command = [
        sys.executable,
        "-m",
        "berth",
        "experiment",
        "pai",
        path,
        "-n",
        "10",
        "-g",
        "4",
        "-r",
        "5",
        "--json",
    ]
    if not (Path(sys.executable).parent / "berth").exists():
        pytest.skip("berth is not installed as a command")
    command[:3] = [str(Path(sys.executable).parent / "berth")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [one["order"] for one in found] == ["SJF", "SJU", "SJG", "SJGG", "FIFO"]
    assert list(found[0]) == [
        "order",
        "knowledge",
        "mean_completion_s",
        "mean_wait_s",
        "makespan_s",
        "jobs",
        "seconds",
        "published_completion_s",
    ]


def test_sjf_goes_by_what_is_believed_and_the_file_s_estimates_do_not(tmp_path: Path) -> None:
    path = write(tmp_path / "sample.csv", 60)

    def found(knowledge: str) -> dict[str, float]:
        results = pai(path, jobs=50, gpus=3, rate=30, knowledge=knowledge)
        assert {result.knowledge for result in results} == {knowledge}
        return {result.order: result.completion_s for result in results}

    true, wrong, none = found("oracle"), found("noisy?run=2"), found("user")
    assert wrong["SJF"] > true["SJF"]
    assert none["SJF"] > true["SJF"]  # nobody says anything: in the order of the numbers
    for order in ("SJU", "SJG", "SJGG", "FIFO"):
        assert wrong[order] == none[order] == true[order]
