"""What jobs cost, from the command line."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from berth.errors import SettingError
from berth.history.importing.sacct import import_text
from berth.history.importing.samples import import_usage
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from tests.cli.test_job import berth, use
from tests.history import exports

HEADER = exports.HEADER + "|ConsumedEnergyRaw"
PRICES = """\
currency = "EUR"
cpu_hour = 0.01
kwh = 0.5
co2_g_per_kwh = 400

[gpu_hour]
A100 = 2
"""


@pytest.fixture
def history(tmp_path: Path) -> Path:
    v100 = "cpu=4,gres/gpu:v100=1,gres/gpu=1,mem=4G,node=1"
    rows = [
        exports.line(JobIDRaw=1) + "|3600000",  # 2 GPU-hours of an a100, 8 CPU-hours, 1 kWh
        exports.line(JobIDRaw=2, User="007", AllocTRES=v100) + "|",
        exports.line(JobIDRaw=3, User="=cmd()", AllocTRES="cpu=1,mem=1G") + "|",
        exports.line(JobIDRaw=4, State="CANCELLED", Start="Unknown", AllocTRES="") + "|",
    ]
    import_text(open_history(tmp_path / "h"), exports.write(tmp_path / "f", rows, HEADER), Options("c"))
    return tmp_path / "h"


def test_cost_follows_the_price_list(history: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PRICES + "v100 = 0.25\n")
    words = ("cost", "--prices", tmp_path / "p.toml", "--by", "user", "--history", history)
    told = json.loads(berth(*words, "--json"))
    none = {"energy_kwh": None, "co2_kg": None}
    assert told == {
        "by": ["user"],
        "currency": "EUR",
        "rows": [
            {
                "user": "ann",
                "gpu_hours": 2.0,
                "cpu_hours": 8.0,
                "energy_kwh": 1.0,
                "co2_kg": 0.4,
                "cost": 4.58,
            },
            {"user": "007", "gpu_hours": 1.0, "cpu_hours": 4.0, **none, "cost": 0.29},
            {"user": "=cmd()", "gpu_hours": 0.0, "cpu_hours": 1.0, **none, "cost": 0.01},
        ],
    }
    rows = list(csv.reader(berth(*words, "--csv").splitlines()))
    assert rows[0] == ["user", "gpu_hours", "cpu_hours", "energy_kwh", "co2_kg", "cost"]
    assert [row[0] for row in rows[1:]] == ["ann", "007", "'=cmd()"]
    assert "4.88 EUR in all" in berth(*words)


def test_energy_is_that_of_the_gpus_where_slurm_measured_none(history: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PRICES + "v100 = 0.25\n")
    row = exports.line(JobIDRaw=5, User="zero", AllocTRES="cpu=1,mem=1G") + "|0"
    import_text(open_history(history), exports.write(tmp_path / "g", [row], HEADER), Options("c"))
    sampled = [
        replace(use(job, "gpu01", begin_min, begin_min + 30, 0.5, 0.5), energy_j=joules)
        for job, begin_min, joules in (("1", 10, 9e9), ("2", 10, 900_000.4), ("2", 40, 900_000.1))
    ]
    import_usage(open_history(history), sampled)
    words = ("--history", history, "--json")
    told = json.loads(berth("cost", "--prices", tmp_path / "p.toml", "--by", "user", *words))
    assert {row["user"]: (row["energy_kwh"], row["co2_kg"]) for row in told["rows"]} == {
        "ann": (1.0, 0.4),  # Slurm measured its node
        "007": (pytest.approx(0.5), pytest.approx(0.2)),
        "zero": (None, None),
        "=cmd()": (None, None),
    }
    row = exports.line(JobIDRaw=6, User="nocpu", NCPUS="", AllocTRES="gres/gpu:v100=1,gres/gpu=1", ReqTRES="")
    import_text(open_history(history), exports.write(tmp_path / "g", [row + "|"], HEADER), Options("c"))
    told = json.loads(berth("cost", "--prices", tmp_path / "p.toml", "--by", "user", *words))
    unknown = {"cpu_hours": None, "energy_kwh": None, "co2_kg": None}
    assert {"user": "nocpu", "gpu_hours": 1.0, "cost": 0.25, **unknown} in told["rows"]
    assert json.loads(berth("job", "2", *words))[0]["cost"]["energy_kwh"] == pytest.approx(0.5)


def test_a_model_without_a_price_and_a_wrong_list_are_refused(history: Path, tmp_path: Path) -> None:
    words = ("cost", "--prices", tmp_path / "p.toml", "--history", history)
    for text, said in (
        (PRICES, r"no price for GPU model 'v100' \(1.0 GPU-hours\)"),
        (PRICES.replace("= 2", "= -2"), "gpu_hour.A100 is -2; expected a number, 0 or more"),
        ("gpu_our = 1\n", "no setting gpu_our; there are currency"),
        ("gpu_hour = 1\n", "expected currency"),
        ("x", "cannot be read as a price list"),
    ):
        (tmp_path / "p.toml").write_text(text)
        with pytest.raises(SettingError, match=said):
            berth(*words)
    (tmp_path / "p.toml").write_text(PRICES + "default = 1\n")
    assert "5.59 EUR in all" not in berth(*words)
    assert "5.63 EUR in all" in berth(*words)
