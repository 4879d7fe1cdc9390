"""`berth interference …`: how well co-located jobs' speeds are predicted, and models from one's own measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from berth.cli.output import JsonOrCsv, printed

app = typer.Typer(
    help="How jobs on one GPU slow each other: judge a model by measurements, or fit one.",
    no_args_is_help=True,
)

Alone = Annotated[
    Path,
    typer.Option(
        "--alone",
        metavar="SINGLE.csv",
        help="Applications alone: model, dataset, batchsize, amp, gpu_util, gmem_util (%), gmem (MiB).",
    ),
]
Pairs = Annotated[
    Path,
    typer.Option(
        "--pairs",
        metavar="PAIRS.csv",
        help="Pairs: model1, dataset1, batchsize1, amp1, speed1 (1 = alone), and the same with 2.",
    ),
]


@app.callback()
def _interference() -> None:
    pass


@app.command()
def evaluate(
    alone: Alone,
    pairs: Pairs,
    model: Annotated[
        str, typer.Option(metavar="NAME|FILE.json", help="time-sliced, mps, mig, none, or a fitted one.")
    ] = "mps",
    as_json: JsonOrCsv = None,
) -> None:
    """Compare predicted speeds with those of measured pairs: the mean absolute error."""
    from berth.interference import make_speeds, mode_of
    from berth_papers.interference.fitting import evaluate as judge
    from berth_papers.interference.measurements import read_measurements

    speeds = make_speeds(model)
    found = judge(speeds, read_measurements(alone, pairs))
    answer = {"mae": round(found.mae, 6), "pairs": found.pairs, "mode": mode_of(speeds)}
    if printed(as_json, [answer], answer):
        return
    print(f"mean absolute error {found.mae:.4f} of the speed alone, over {found.pairs:,} pairs")


@app.command()
def fit(
    alone: Alone,
    pairs: Pairs,
    out: Annotated[Path, typer.Argument(metavar="OUT.json", help="The model, for --interference OUT.json.")],
    folds: Annotated[int, typer.Option(min=2, help="Number of folds in which pairs are held out.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed that deals the pairs into folds.")] = 0,
    mode: Annotated[
        str,
        typer.Option(help="How the GPU was shared when the pairs were measured: mps or time-sliced."),
    ] = "mps",
    as_json: JsonOrCsv = None,
) -> None:
    """Fit a model to your own measurements, and judge it on held-out pairs."""
    from berth.errors import SettingError
    from berth.files import write_whole
    from berth.interference.contention import MODES
    from berth_papers.interference.fitting import evaluate as judge
    from berth_papers.interference.fitting import fit as fitted
    from berth_papers.interference.fitting import folds_of_pairs
    from berth_papers.interference.measurements import read_measurements

    if out.suffix != ".json":
        raise SettingError(f"{out}: expected a name that ends in .json")
    if mode not in MODES:
        raise SettingError(f"--mode {mode}; expected {' or '.join(MODES)}")
    measured = read_measurements(alone, pairs)
    if len(measured) < folds:
        raise SettingError(
            f"{len(measured)} pairs cannot be divided into {folds} folds; measure more, or give --folds"
        )
    unseen = [
        judge(fitted(measured.of(train), mode), measured.of(test))
        for train, test in folds_of_pairs(measured, seed, folds)
    ]
    mae = sum(one.mae * one.pairs for one in unseen) / len(measured)
    model = fitted(measured, mode)
    write_whole(out, model.to_json())
    answer = {
        "mae": round(mae, 6),
        "pairs": len(measured),
        "mode": mode,
        "use_milli": model.use_milli,
        "model": str(out),
    }
    if printed(as_json, [answer], answer):
        return
    print(
        f"mean absolute error {mae:.4f} on unseen pairs, over {len(measured):,}; under {mode} a GPU that is busy all of"
        f" the time is taken to be used {model.use_milli / 10:g} %; wrote {out}"
    )
