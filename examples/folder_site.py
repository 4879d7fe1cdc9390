"""Make a folder of files a place where jobs run: a job starts when its file moves from `waiting` to `running`."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from berth.knowledge.out_of_memory import MemoryNeed
from berth.live.driver.driver import Driver, Settings
from berth.live.driver.site import Again, End, FailedStart, GiveUp, Gpu, SiteJob, SiteNode, SiteRun, Start
from berth.model import GpuModel, Job, Node, RecordState, Share

FOLDERS = ("waiting", "running", "ended")
SETTLED_BY_DRIVER = (RecordState.OUT_OF_MEMORY, RecordState.PREEMPTED)  # it says what becomes of the job
REMEMBERED = ("attempt", "start_failures", "not_before_ms", "why")


class FolderSite:
    """Jobs as files of JSON: `waiting/NAME`, `running/NAME`, `ended/NAME`; `running/NAME.end` says how one ended."""

    name = "folder"

    def __init__(self, folder: Path, nodes: Sequence[Node]) -> None:
        self._folder, self._nodes = folder, nodes
        for name in FOLDERS:
            (folder / name).mkdir(exist_ok=True)

    # What there is

    def nodes(self) -> list[SiteNode]:
        return [SiteNode(node) for node in self._nodes]

    def waiting(self) -> dict[str, SiteJob]:
        return {path.name: self._job(path.name, self._read(path)) for path in self._files("waiting")}

    def running(self) -> dict[str, SiteRun]:
        return {path.name: self._run(path) for path in self._files("running") if path.suffix != ".end"}

    def others(self) -> dict[Gpu, Share]:
        held = self._folder / "others"  # lines such as: n1 0 1000 40000
        lines = [line.split() for line in held.read_text().splitlines()] if held.exists() else []
        return {Gpu(node, int(at)): Share(int(milli), int(mem)) for node, at, milli, mem in lines}

    def ended(self) -> list[End | FailedStart]:
        return [self._end(path) for path in self._files("running") if path.suffix == ".end"]

    # What it does

    def start(self, start: Start) -> None:
        self._move(start.job_id, "waiting", "running", on=start.gpus, share=start.share)

    def again(self, again: Again) -> None:
        self._move(again.job_id, "running", "waiting", **again._asdict())
        self._settled(again.job_id)

    def give_up(self, given_up: GiveUp) -> None:
        self._move(given_up.job_id, "running", "ended", state=given_up.state, why=given_up.why)
        self._settled(given_up.job_id)

    def note(self, job_id: str, why: str) -> None:
        self._move(job_id, "waiting", "waiting", why=why)

    # How

    def _files(self, name: str) -> list[Path]:
        return sorted((self._folder / name).iterdir())

    def _read(self, path: Path) -> dict[str, Any]:
        return json.loads(path.read_text())

    def _move(self, file: str, source: str, target: str, **changed: Any) -> None:
        path = self._folder / source / file
        path.write_text(json.dumps(self._read(path) | changed))
        path.rename(self._folder / target / file)

    def _settled(self, job_id: str) -> None:
        (self._folder / "running" / f"{job_id}.end").unlink(missing_ok=True)

    def _job(self, job_id: str, values: dict[str, Any]) -> SiteJob:
        share = Share(values.get("milli", 1000), values.get("mem_mib", 0))
        remembered = {name: values[name] for name in REMEMBERED if name in values}
        need = MemoryNeed(*values.get("memory", ()))
        job = Job(job_id, 0, None, gpus=values.get("gpus", 1), share=share)
        return SiteJob(job, order=(int(job_id.partition("-")[0]),), memory=need, **remembered)

    def _run(self, path: Path) -> SiteRun:
        values = self._read(path)
        gpus = tuple(Gpu(*gpu) for gpu in values["on"])
        return SiteRun(self._job(path.name, values), gpus, share=Share(*values["share"]))

    def _end(self, path: Path) -> End:
        values, ran = self._read(path), self._run(path.with_suffix(""))
        state = RecordState(values.pop("state"))
        if state not in SETTLED_BY_DRIVER and not values.get("cut_short"):
            self._move(path.stem, "running", "ended", state=state)
            self._settled(path.stem)
        return End(path.stem, state, attempt=ran.of.attempt, ran=ran, **values)


def show(driver: Driver, folder: Path, now_ms: int) -> None:
    """Let the driver look, decide and tell, and print what lies in the folder then."""
    records = driver.step(now_ms).records
    print(f"at {now_ms} ms")
    for each in records:
        print(f"  attempt {each.attempt} of {each.job_id}: {each.state}, had {each.share.mem_mib} MiB")
    for name in FOLDERS:
        for path in sorted((folder / name).iterdir()):
            values = json.loads(path.read_text())
            gpus = [f"GPU {index} of {node}" for node, index in values.get("on", ()) if name == "running"]
            print(f"  {name} {path.name}: {', '.join(gpus) or values.get('state') or values['why']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        site = FolderSite(folder, [Node("n1", 2, GpuModel("A100-40", mem_mib=40_000))])
        half = {"milli": 500, "mem_mib": 8000}
        for job_id, asked in (("1-train", half), ("2-both", {"gpus": 2}), ("3-tune", half)):
            (folder / "waiting" / job_id).write_text(json.dumps(asked))
        settings = Settings(policy="fifo+best-fit", knowledge="user")
        driver = Driver(site, settings)
        show(driver, folder, 1000)
        ran_out = {"state": "out-of-memory", "end_ms": 2000, "peak_mib": 7900, "needed_mib": 9600}
        (folder / "running" / "1-train.end").write_text(json.dumps(ran_out))
        show(driver, folder, 2000)
        driver = Driver(site, settings)  # as after a restart: it keeps nothing that the folder does not
        (folder / "running" / "1-train.end").write_text(json.dumps({"state": "completed", "end_ms": 3000}))
        show(driver, folder, 3000)
