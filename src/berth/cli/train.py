"""`berth train`: learn which waiting jobs to start together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.comma_separated import names_of
from berth.cli.files import checked_place
from berth.cli.output import AsJson
from berth.cli.profile import read_profiles
from berth.cli.progress import progress_bar
from berth.counts import counted
from berth.files import write_whole

if TYPE_CHECKING:
    from berth.learning.plan import Made, Plan
    from berth.learning.training import Trained
    from berth.network.model_file import Model


def train(
    learner: Annotated[
        str,
        typer.Option(
            help="learned or rule; with berth-papers also deeprm-max, deeprm-mean, dqn or dqn-as-printed."
        ),
    ] = "learned",
    workload: Annotated[
        str, typer.Option(help="One of the thesis's workloads, or all of them in turn.")
    ] = "all",
    interference: Annotated[
        str, typer.Option(metavar="A,B,…", help="Models of interference; each episode has one.")
    ] = "mps,time-sliced",
    family: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of worlds to train in under each model of interference: besides the given ones, worlds with"
            " drawn applications and cards, short queues and wrong beliefs.",
        ),
    ] = 0,
    slots: Annotated[
        int, typer.Option("--slots", "-M", min=1, max=10, help="Number of waiting jobs seen at once.")
    ] = 5,
    iterations: Annotated[int, typer.Option(min=1, help="Number of iterations.")] = 200,
    budget_s: Annotated[
        float | None,
        typer.Option(min=0.1, help="Stop after this many seconds; runs then differ from each other."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of random numbers.")] = 0,
    from_history: Annotated[
        Path | None,
        typer.Option(metavar="HISTORY", help="Train on the jobs and profiles of this history."),
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Profiles; by default those of the history.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|none",
            help="Continue from this model; by default with --from-history from the one that ships, else from none.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The model, by default model.npz."),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the training curve in this file, which ends in .html."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Learn which waiting jobs to start together on a GPU (extra `learn`).

    Writes the network that measured best, as a model that decides without JAX: `--policies learned?model=FILE`.
    """
    from berth.learning.learners import learners
    from berth.learning.plan import Plan, file_of, make
    from berth.learning.training import TrainingSettings
    from berth.learning.training import train as learn
    from berth.profiles import WORKLOADS

    models = names_of(interference)
    plan = Plan(learner, workload, models, slots, family=family)
    settings = TrainingSettings(iterations, seed, budget_s=budget_s)
    decides = learners()[learner].file is not None
    if out is not None and not decides:
        raise typer.BadParameter(
            f"no model is written: no policy decides by what {learner} learns; --curve draws what it learned",
            param_hint="--out",
        )
    model = checked_place(out or Path("model.npz")) if decides else None
    if curve is not None:
        checked_place(curve, ".html")
    first = _start(plan, start or ("shipped" if from_history else "none"))
    made = (
        _from_history(plan, from_history, profiles, seed, first) if from_history else make(plan, start=first)
    )
    with progress_bar(f"training {learner}", long=True) as progress:
        found = learn(made.learner, made.measure, settings, progress=progress)
    written = []
    if model is not None:
        names = (
            (str(from_history),) if from_history else tuple(WORKLOADS) if workload == "all" else (workload,)
        )
        write_whole(model, file_of(made, found, names, seed))
        written.append(model)
    greedy = made.greedy() if curve is not None and made.greedy is not None else None
    if curve is not None:
        _plot(curve, learner, found, greedy)
        written.append(curve)
    if as_json:
        print(json.dumps(_answer(found, written, greedy), allow_nan=False))
        return
    last = found.curve[-1]
    print(
        f"{counted(last.decisions, 'decision')} in {last.seconds:.0f} s; best after iteration {found.iteration}:"
        f" total time {found.measured:.3f} of that of all jobs one after the other"
    )
    for path in written:
        print(f"wrote {path}")
    if model is None:
        print(f"no model is written: no policy decides by what {learner} learns")


def _start(plan: Plan, name: str) -> Model | None:
    """The model to begin with: none, that of a file, or for `shipped` the one that ships for this plan."""
    from berth.interference import make_speeds
    from berth.learning.learners import learners
    from berth.policies.colocation.learned import model_named

    if name == "none":
        return None
    if name != "shipped":
        return model_named(name)
    shipped = learners()[plan.learner].shipped
    return shipped(make_speeds(plan.interference[0])) if shipped else None


def _from_history(plan: Plan, history: Path, profiles: Path | None, seed: int, start: Model | None) -> Made:
    from berth.history.store.folder import open_history
    from berth.learning.history_jobs import history_sets
    from berth.learning.jobsets import make_task
    from berth.learning.plan import make

    kept = read_profiles(profiles or history, in_history=profiles is None)
    known = kept if profiles else kept.of_runs_alone(begun=False)
    records = list(open_history(history).records())
    if not known:
        raise typer.BadParameter(f"no profiles in {profiles or history}", param_hint="--profiles")
    # The card with the most memory: whatever was measured on another fits there too, and is scaled to it.
    gpu = max((profile.hardware for profile in known.values()), key=lambda card: card.mem_mib)
    task = make_task(known, gpu)
    sets = history_sets(task, records, plan.jobs, (plan.sets, plan.validation), seed)
    return make(plan, task=task, sets=sets, start=start)


def _plot(path: Path, learner: str, found: Trained, greedy: float | None) -> None:
    from berth.plots.training import training_curve
    from berth.report.report import write_picture

    begun = {} if found.begun is None else {learner: found.begun}
    others = {} if greedy is None else {"greedy": greedy}
    greedy_text = "" if greedy is None else f", and greedy {greedy:.3f}"
    answer = (
        f"After iteration {found.iteration}, {learner} needs {found.measured:.3f} of the time that all jobs take one"
        f" after another{greedy_text}."
    )
    write_picture(training_curve({learner: found.curve}, begun=begun, others=others), path, [answer])


def _answer(found: Trained, written: list[Path], greedy: float | None) -> dict[str, object]:
    from berth.learning.training import Point

    curve = found.curve if found.begun is None else (Point(0, 0, 0.0, None, found.begun), *found.curve)
    return {
        "measured": found.measured,
        "iteration": found.iteration,
        "greedy": greedy,
        "files": [str(path) for path in written],
        "curve": [point._asdict() for point in curve],
    }
