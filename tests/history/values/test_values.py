"""Lists of hosts, resources and rules for applications."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.errors import SettingError
from berth.history.importing.sacct import SEPARATOR
from berth.history.importing.slurmdbd import is_whole
from berth.history.values.applications import read_rules
from berth.history.values.durations import hours_column
from berth.history.values.hostlist import expand
from berth.history.values.tres import Resources, resources


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("None assigned", ()),
        ("gpu01", ("gpu01",)),
        ("gpu[08-11,3],login1", ("gpu08", "gpu09", "gpu10", "gpu11", "gpu3", "login1")),
        ("r[1-2]n[01-02]x", ("r1n01x", "r1n02x", "r2n01x", "r2n02x")),
    ],
)
def test_a_list_of_hosts_is_their_names(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["gpu[1-", "gpu[a-b]", "gpu[1-999999999]"])
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        expand(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "billing=4,cpu=4,gres/gpu:v100=2,gres/gpu=2,mem=4000M,node=1",
            Resources(2, "v100", 0, 4, 4000, nodes=1),
        ),
        ("cpu=1,mem=64G,energy=18446744073709551614", Resources(0, "", 0, 1, 65536)),
        ("gres/gpu:a100=1,gres/gpu:v100=3", Resources(4, "v100")),
        ("gpu:v100:2", Resources(0, "v100", gpus_a_node=2)),
        ("cpu=1,gres/shard=3", Resources(shards=3, cpus=1)),
        ("", Resources()),
        (
            "gres/gpu=4294967294,cpu=4294967295,mem=4294967294M,node=2",
            Resources(nodes=2, unknown=" cpu gpu mem"),
        ),
        ("gres/gpu=18446744073709551614,gres/gpu:v100=2", Resources(2, "v100")),
        ("cpu=18446744073709551613,mem=18446744073709551615", Resources(unknown=" cpu mem")),
        ("mem=4294967296M,gres/gpu=2147483648", Resources(mem_mib=2**32, unknown=" gpu")),
    ],
)
def test_resources_are_read_in_old_and_new_forms(text: str, found: Resources) -> None:
    assert resources(text) == found


def test_a_databases_numbers_of_resources_have_names() -> None:
    names = {"1": "cpu", "2": "mem", "1001": "gres/gpu", "1002": "gres/gpu:v100"}
    assert resources("1=4,2=2000,1001=2,1002=2", names) == Resources(2, "v100", 0, 4, 2000)


@pytest.mark.parametrize(
    ("comment", "name", "command", "application"),
    [
        ("pytorch", "job", "", "pytorch"),
        ("", "pt_resnet50", "", "pytorch"),
        ("", "train_tf", "", "tensorflow"),
        ("", "jax_tf", "", "tensorflow"),
        ("", "job", "docker://nvcr.io/nvidia/pytorch:23.01-py3 sbatch run.sh", "pytorch"),
        ("vasp", "pytorch", "", "vasp"),
        ("", "lmp", "srun /opt/lammps/bin/lmp_gpu -in x", "lammps"),
        ("", "x", "srun python3 train.py", "python"),
        ("", "gmx", "", "gromacs"),
        ("", "colabfold_batch", "", "alphafold"),
        ("", "serve", "vllm serve model", "vllm"),
        ("", "pw.x", "", "quantum-espresso"),
        ("", "mystery", "./a.out", ""),
    ],
)
def test_rules_know_applications(comment: str, name: str, command: str, application: str) -> None:
    assert read_rules().application(comment, name, command) == application


@pytest.mark.parametrize("text", ["my-bert", "bert my-bert", "my-bertha"])
def test_the_first_rule_wins_also_where_a_later_one_begins_earlier(tmp_path: Path, text: str) -> None:
    (tmp_path / "rules").write_text("first: bert\nsecond: my-bert\n")
    assert read_rules(tmp_path / "rules").application("", text, "") == "first"


@pytest.mark.parametrize("text", ["no colon here", "x: (", "x: (a)", "x: a*", "# nothing"])
def test_a_bad_rule_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "rules").write_text(text + "\n")
    with pytest.raises(SettingError, match="rules"):
        read_rules(tmp_path / "rules")


@pytest.mark.parametrize("change", ["", "cut", "\x1f", "\n", "\r", "\0"])
def test_rows_that_a_database_packed_are_taken_only_where_nothing_in_them_separates(change: str) -> None:
    fields = 30
    row = SEPARATOR.join(["x"] * fields)
    text = "\n".join([row] * 3)
    if change == "cut":
        assert not is_whole(text[:-5], 3, fields)
    else:
        assert is_whole(text[:10] + change + text[10:], 3, fields) == (change == "")
    assert not is_whole(None, 0, fields)


@pytest.mark.parametrize(
    ("amounts", "column"),
    [
        ([12.5, 0.004, 0.0, None], ("GPU-hours", ["12.50", "0.004", "0", "–"])),
        ([0.05, 0.001], ("GPU-minutes", ["3.00", "0.06"])),
        ([0.0002], ("GPU-seconds", ["0.72"])),
        ([], ("GPU-hours", [])),
    ],
)
def test_a_column_of_hours_has_one_unit(amounts: list[float | None], column: tuple[str, list[str]]) -> None:
    assert hours_column("GPU-hours", amounts) == column
