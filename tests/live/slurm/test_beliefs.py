"""The service for Slurm believes the slow-downs that its knowledge names."""

from __future__ import annotations

from pathlib import Path

from berth.interference.mps import mps
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.services import service


def test_slow_downs_that_were_measured_and_fitted_are_believed(tmp_path: Path) -> None:
    fitted = tmp_path / "mine.json"
    fitted.write_text(mps().to_json(), encoding="utf-8")
    slurm = FakeSlurm(nodes={"node1": "IDLE"})
    ours = service(slurm, tmp_path / "state", knowledge=f"history?interference={fitted}")
    assert ours.driver.knowledge.speeds == mps()
