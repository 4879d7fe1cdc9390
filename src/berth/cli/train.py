"""`berth train`: learn which waiting jobs to start together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.importing import AsJson

if TYPE_CHECKING:
    from berth.learning.plan import Made, Plan
    from berth.learning.training import Trained
    from berth.network.model_file import Model


def train(
    learner: Annotated[
        str,
        typer.Option(
            help="dqn, which is ppo today; double-dqn, deeprm-max, deeprm-mean, dqn-paper, dqn-paper-as-printed."
        ),
    ] = "dqn",
    workload: Annotated[
        str, typer.Option(help="One of the thesis's workloads, or all of them in turn.")
    ] = "all",
    interference: Annotated[
        str, typer.Option(metavar="A,B,…", help="Models of interference; each episode has one.")
    ] = "measured,time-sliced",
    slots: Annotated[int, typer.Option("--slots", "-M", help="Waiting jobs that are seen at once.")] = 5,
    iterations: Annotated[int, typer.Option(min=1, help="Stop after so many.")] = 200,
    budget_s: Annotated[
        float | None, typer.Option(min=0.1, help="Stop after so many seconds; then no two runs are the same.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Where random numbers start.")] = 0,
    from_history: Annotated[
        Path | None,
        typer.Option(metavar="HISTORY", help="Learn the jobs that this history has, by its profiles."),
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Profiles; by default those of the history.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|none",
            help="Go on from this model; by default with --from-history from the one that ships, else from none.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The model.")] = Path("model.npz"),
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the training here, to go on from.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder of checkpoints.")] = False,
    curve: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the training curve: .html, .png or .svg.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Learn which waiting jobs to start together on a GPU (extra `learn`).

    Writes the best network that was measured as a model which decides without JAX: `--policies dqn?model=FILE`.
    """
    from berth.cli.progress import progress_bar
    from berth.learning.plan import LEARNERS, Plan, make, model_of
    from berth.learning.training import TrainingSettings
    from berth.learning.training import train as learn
    from berth.network.model_file import model_bytes
    from berth.profiles import WORKLOADS
    from berth.whole_file import whole_file

    models = tuple(name.strip() for name in interference.split(",") if name.strip())
    plan = Plan(learner, workload, models, slots)
    settings = TrainingSettings(iterations, seed, budget_s=budget_s)
    if resume and checkpoints is None:
        raise typer.BadParameter("name the folder to go on from with --checkpoints", param_hint="--resume")
    first = _start(plan, start or ("shipped" if from_history else "none"))
    made = (
        _from_history(plan, from_history, profiles, seed, first) if from_history else make(plan, start=first)
    )
    with progress_bar(f"training {learner}") as progress:
        found = learn(
            made.learner, made.measure, settings,
            training=made.described, folder=checkpoints, resume=resume, progress=progress,
        )  # fmt: skip
    written = []
    if LEARNERS[learner].ships_as is not None:
        names = (
            (str(from_history),) if from_history else tuple(WORKLOADS) if workload == "all" else (workload,)
        )
        with whole_file(out) as aside:
            aside.write_bytes(model_bytes(model_of(made, found, names, seed)))
        written.append(out)
    if curve is not None:
        _plot(curve, learner, found)
        written.append(curve)
    if as_json:
        print(json.dumps(_answer(found, written), allow_nan=False))
        return
    last = found.curve[-1]
    print(
        f"{last.decisions:,} decisions in {last.seconds:.0f} s; best after iteration {found.iteration}:"
        f" total time {found.measured:.3f} of that of all jobs one after the other"
    )
    for path in written:
        print(f"wrote {path}")


def _start(plan: Plan, name: str) -> Model | None:
    """The model to begin with: none, that of a file, or for `shipped` the one that ships for this plan."""
    from berth.interference import make_speeds
    from berth.learning.plan import LEARNERS
    from berth.policies.dqn import model_named, shipped_for

    shipped = LEARNERS[plan.learner].ships_as
    if name == "none" or (name == "shipped" and shipped is None):
        return None
    if name != "shipped" or shipped is None:
        return model_named(name)
    if len(plan.interference) == 1:
        shipped = shipped_for(shipped, make_speeds(plan.interference[0]))
    return model_named(shipped)


def _from_history(plan: Plan, history: Path, profiles: Path | None, seed: int, start: Model | None) -> Made:
    from berth.history.folder import open_history
    from berth.learning.history_jobs import history_sets
    from berth.learning.jobsets import make_task
    from berth.learning.plan import make
    from berth.profiles import Profiles

    known = Profiles.of_folder(profiles) if profiles else Profiles.of_history(history)
    records = list(open_history(history).records())
    if not known:
        raise typer.BadParameter(f"no profiles in {profiles or history}", param_hint="--profiles")
    # The card with the most memory: whatever was measured on another fits there too, and is scaled to it.
    gpu = max((profile.hardware for profile in known.values()), key=lambda card: card.mem_mib)
    task = make_task(known, gpu)
    sets = history_sets(task, records, plan.jobs, (plan.sets, plan.validation), seed)
    return make(plan, task=task, sets=sets, start=start)


def _plot(path: Path, learner: str, found: Trained) -> None:
    from berth.plots.training import training_curve
    from berth.report.image import write_image

    write_image(training_curve({learner: found.curve}), path)


def _answer(found: Trained, written: list[Path]) -> dict[str, object]:
    return {
        "measured": found.measured,
        "iteration": found.iteration,
        "files": [str(path) for path in written],
        "curve": [point._asdict() for point in found.curve],
    }
