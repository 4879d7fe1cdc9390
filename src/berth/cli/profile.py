"""`berth profile …`: applications' use of a GPU over their runs, kept with the history."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.files import checked_place
from berth.cli.history_folder import HistoryFolder
from berth.cli.output import JsonOrCsv, console, plain_table, printed
from berth.counts import counted
from berth.errors import ProfileError
from berth.files import write_whole

if TYPE_CHECKING:
    from berth.model import Profile
    from berth.profiles import Profiles, Series

app = typer.Typer(
    help="Applications' use of a GPU over their runs, kept with the history.", no_args_is_help=True
)

Application = Annotated[
    str, typer.Argument(metavar="APPLICATION", help="A name that `berth profile list` shows.")
]


@app.callback()
def _profile() -> None:
    pass


@app.command("list")
def list_(history: HistoryFolder = Path("history"), as_json: JsonOrCsv = None) -> None:
    """List the history's and the built-in profiles, one per line."""
    from berth.profiles import series, thesis_profiles

    kept = read_profiles(history, in_history=True)
    rows = []
    for name, profile in (thesis_profiles() | kept).items():
        shown = series(profile, profile.hardware)
        gpu_milli, mem_mib, cores_milli, pcie_milli = (
            round(float(mean)) for mean in shown.usage.mean(axis=0)
        )
        rows.append(
            {
                "application": name,
                "kind": profile.kind,
                "source": "history" if name in kept else "thesis",
                "gpu": profile.hardware.name,
                "run_time_s": shown.run_time_ms / 1000,
                "gpu_mean_milli": gpu_milli,
                "mem_mean_mib": mem_mib,
                "mem_peak_mib": shown.peak_mem_mib,
                "cores_mean_milli": cores_milli,
                "pcie_mean_milli": pcie_milli,
            }
        )
    if printed(as_json, rows):
        return
    headings = ("application", "kind", "source", "GPU", "run s", "GPU %", "MiB", "peak MiB")
    cells = [
        (
            *(str(row[name]) for name in ("application", "kind", "source", "gpu")),
            f"{row['run_time_s']:,.0f}",
            f"{row['gpu_mean_milli'] / 10:.0f}",  # type: ignore[operator]
            f"{row['mem_mean_mib']:,}",
            f"{row['mem_peak_mib']:,}",
        )
        for row in rows
    ]
    console().print(plain_table(headings, cells, left=4))


def _in_a_sentence(profile: Profile) -> str:
    card = profile.hardware.mem_mib
    gpu, mem = profile.usage[:, 0], profile.usage[:, 1]
    seconds = len(profile.usage) * profile.interval_ms / 1000
    return (
        f"{profile.application} uses {gpu.mean() * 100:.0f} % of the GPU on average over {seconds:,.0f} s,"
        f" and at most {mem.max() * card:,.0f} of {card:,} MiB of its memory."
    )


@app.command()
def show(
    application: Application,
    out: Annotated[
        Path | None, typer.Argument(metavar="[OUT]", help="Write a plot to this file, which ends in .html.")
    ] = None,
    history: HistoryFolder = Path("history"),
    as_json: JsonOrCsv = None,
) -> None:
    """Show an application's use of its GPU over its run: a summary, or a plot if OUT is given.

    `berth profile export` writes every row.
    """
    profile, table = _found(application, history), as_json is None
    if out is not None:
        checked_place(out, ".html")
        from berth.plots.profiles import profile_figure
        from berth.report.report import write_picture

        write_picture(profile_figure(profile), out, [_in_a_sentence(profile)])
        print(f"wrote {out}", file=sys.stdout if table else sys.stderr)
    if not table or out is None:
        from berth.profiles import series
        from berth.profiles.series import COLUMNS

        shown = series(profile, profile.hardware)
        usage = shown.usage.tolist()
        answer = {"application": application, "interval_ms": shown.interval_ms}
        rows = [
            {**answer, "at_ms": at * shown.interval_ms, **dict(zip(COLUMNS, row, strict=True))}
            for at, row in enumerate(usage)
        ]
        columns = dict(zip(COLUMNS, map(list, zip(*usage, strict=True)), strict=True))
        if not printed(as_json, rows, {**answer, **columns}):
            _summarise(profile, shown)


def _summarise(profile: Profile, shown: Series) -> None:
    """The mean and the peak of each of the four, and where the rows are."""
    from berth.profiles import BEGUN, company

    card = profile.hardware
    of = [f"{card.mem_mib:,} MiB"]
    of += [f"{card.cores:,} cores"] if card.cores else []
    of += [f"PCIe {card.pcie_mbps:,} MB/s"] if card.pcie_mbps else []
    kind = f" ({profile.kind})" if profile.kind else ""
    lasts = f"{shown.run_time_ms / 1000:,.0f} s"
    seen = f"the first {lasts} of a run" if profile.kind == BEGUN else lasts
    print(
        f"{profile.application}{kind}: {seen} {company(profile)} on {card.name} ({', '.join(of)}),"
        f" {counted(len(shown.usage), 'row')} of {profile.interval_ms / 1000:g} s"
    )
    rows = (("GPU", "%", 0), ("GPU memory", "MiB", 1), ("GPU cores", "%", 2), ("PCIe", "%", 3))
    for name, unit, column in rows:
        values = shown.usage[:, column] / (10 if unit == "%" else 1)
        print(f"  {name:<10}  mean {values.mean():>7,.0f} {unit:<3}  peak {values.max():>7,.0f} {unit}")
    print(
        f"every row: berth profile export {shlex.quote(profile.application)}; a plot: add a file's name, as out.html"
    )


@app.command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(metavar="FILE|FOLDER", help="A profile, or a folder of them."),
    ],
    history: HistoryFolder = Path("history"),
) -> None:
    """Import profiles into the history; each replaces the earlier profile of its application."""
    from berth.profiles import IN_HISTORY, is_profile, keep_profile, read_profile

    if source.is_dir():
        files = sorted(source.glob("*.csv"))
        found = [read_profile(file) for file in files if is_profile(file)]
        if left := [file.name for file in files if not is_profile(file)]:
            print(f"berth: not profiles, and left out: {', '.join(left)}", file=sys.stderr)
    else:
        found = [read_profile(source)]
    if not found:
        raise ProfileError(
            f"there is no profile in {source}; expected files whose names end in .csv, with the header of a profile"
        )
    for profile in found:
        keep_profile(profile, history / IN_HISTORY)
        if not profile.hardware.cores:
            print(
                f"berth: '{profile.application}': the cores of its card are not known: its use of the GPU is not"
                " scaled to other cards",
                file=sys.stderr,
            )
    names = ", ".join(profile.application for profile in found[:5]) + (", …" if len(found) > 5 else "")
    print(f"took {counted(len(found), 'profile')} over into {history / IN_HISTORY}: {names}")


@app.command()
def export(
    application: Application,
    out: Annotated[
        Path | None, typer.Argument(metavar="[FILE.csv]", help="By default standard output.")
    ] = None,
    history: HistoryFolder = Path("history"),
) -> None:
    """Write a profile as CSV with the unit in every column's name; `import` reads it again."""
    from berth.profiles import profile_text

    text = profile_text(_found(application, history))
    if out is None:
        print(text, end="")
        return
    write_whole(out, text)
    print(f"wrote {out}")


@app.command(context_settings={"allow_interspersed_args": False})
def record(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…", help="What to run, after `--`.")],
    application: Annotated[str, typer.Option(help="Application to which the profile belongs.")],
    kind: Annotated[str, typer.Option(help="The application's type, such as ML or HPC.")] = "",
    input_bytes: Annotated[int, typer.Option(min=0, help="Size of its input, in bytes.")] = 0,
    parameters: Annotated[str, typer.Option(help="Parameters of its input, as free text.")] = "",
    gpu: Annotated[int, typer.Option(min=0, help="GPU to run on, by NVML's index.")] = 0,
    interval_ms: Annotated[int, typer.Option(min=100, help="Milliseconds per row of the profile.")] = 1000,
    history: HistoryFolder = Path("history"),
) -> None:
    """Run a command alone on a GPU, and record its use as the application's profile."""
    from berth.profiles import IN_HISTORY, keep_profile
    from berth.profiles.recorder import NvmlCard
    from berth.profiles.recorder import record as run_and_sample

    profile, status = run_and_sample(
        NvmlCard.open(gpu),
        command,
        application,
        kind=kind,
        input_bytes=input_bytes,
        parameters=parameters,
        interval_ms=interval_ms,
    )
    if status:
        print(f"berth: the command ended with {status}; its profile is not kept", file=sys.stderr)
        raise typer.Exit(status if 0 < status < 256 else 1)
    print(
        f"wrote {keep_profile(profile, history / IN_HISTORY)}: {counted(len(profile.usage), 'row')}",
        file=sys.stderr,
    )


def read_profiles(folder: Path, *, in_history: bool = False) -> Profiles:
    """The profiles of a folder, or of a history; files that are wrong are named on standard error and left out."""
    from berth.profiles import Profiles

    wrong: list[ProfileError] = []
    found = (Profiles.of_history if in_history else Profiles.of_folder)(folder, wrong=wrong)
    for error in wrong:
        print(f"berth: left out: {error}", file=sys.stderr)
    if not in_history and not found and not wrong:
        raise ProfileError(
            f"no profile in {folder}; expected files NAME.profile.csv, as `berth profile import` writes them"
        )
    return found


def _known(history: Path) -> Profiles:
    from berth.profiles import thesis_profiles

    return thesis_profiles() | read_profiles(history, in_history=True)


def _found(application: str, history: Path) -> Profile:
    known = _known(history)
    if application not in known:
        raise ProfileError(f"no profile of '{application}'; there are {', '.join(known)}")
    return known[application]
