"""`berth import …`: what other systems recorded, into the history."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.history_folder import NamedHistory
from berth.cli.output import AsJson
from berth.cli.shared_options import with_options
from berth.counts import counted
from berth.errors import BerthError, HistoryError, SettingError
from berth.history.importing.table_import import csv_rows, header_of, read_map
from berth.history.store.import_result import Options, Rejections
from berth.history.values.durations import moment_ms
from berth.live.slurm.decisions import read_decisions
from berth.traces.readers.asi import RECORDS

if TYPE_CHECKING:
    from berth.history.store.folder import History
    from berth.history.store.import_result import ImportResult, Options, Rejected

app = typer.Typer(
    help="Import jobs into the history. You can repeat an import: nothing counts twice.",
    no_args_is_help=True,
)

ClusterName = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="Name of the cluster, if the rows do not have it.")
]
LISTED = 20


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options that imports share."""

    history: NamedHistory = Path("history")
    cluster: ClusterName = ""
    timezone: Annotated[
        str,
        typer.Option(metavar="ZONE", help="Time zone of times without one, such as Asia/Seoul."),
    ] = "UTC"
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rules that name applications, instead of the built-in ones."),
    ] = None
    shards_per_gpu: Annotated[int, typer.Option(min=0, help="Number of shards per GPU; 0: unknown.")] = 0
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output of sinfo -h -N -o '%N %G': GPU types of nodes, for jobs that do not name them.",
        ),
    ] = None
    pseudonymise: Annotated[
        Path | None,
        typer.Option(
            metavar="KEYFILE",
            help="Replace users, accounts and names by keyed hashes; the key file is created if missing.",
        ),
    ] = None
    daily: Annotated[
        bool,
        typer.Option(
            "--daily", help="For cron: print nothing unless something is wrong, and wait for other imports."
        ),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be imported and what would not, and change nothing."),
    ] = False
    as_json: AsJson = False

    def of_rows(self, encoding: str = "utf-8") -> Options:
        """How rows are read. Raises SettingError if a dry run would have to make the key of pseudonyms."""
        from berth.history.store.pseudonyms import read_key

        path, key = self.pseudonymise, b""
        if path and self.dry_run and not path.exists():
            raise SettingError(
                f"there is no key {path} yet, which a dry run does not make; run it without --pseudonymise"
            )
        if path:
            key = read_key(path, self.history)
        return Options(
            self.cluster,
            self.timezone,
            encoding,
            self.shards_per_gpu,
            self.rules,
            key=key,
            nodes=self.nodes,
        )

    @contextmanager
    def store(self, importing: str) -> Iterator[History]:
        """The history to import into. A failed import leaves none where none was; neither does a dry run."""
        from tempfile import TemporaryDirectory

        from berth.history.store.folder import open_history

        index = self.history / "index.json"
        if self.dry_run and not index.exists():
            with TemporaryDirectory(prefix="berth-") as folder:
                yield open_history(folder, importing=importing, dry_run=True)
            return
        new = not index.exists()
        before = {*self.history.iterdir()} if self.history.is_dir() else None
        try:
            store = open_history(self.history, importing=importing, dry_run=self.dry_run)
            yield store
            if not self.dry_run:
                _refit(self.history)
        except BaseException:
            if new and not store.index().files():  # it would hide the history of the queue
                _remove_new(self.history, before)
            raise

    def print(self, result: ImportResult) -> None:
        """Print what became of an import, or would; HistoryError if every row was left out. With `daily` nothing is
        printed, unless rows are broken."""
        quiet = ("a step;", "has not ended")
        listed = [row for row in result.rejected if not (self.daily and row.why.startswith(quiet))]
        if self.as_json:
            print(json.dumps(result.to_dict(), ensure_ascii=False))
        else:
            self._print_lines(result, listed)
        if result.read == result.rejected_count and any(not row.why.startswith(quiet) for row in listed):
            raise HistoryError("nothing was imported: every row was left out, for the reasons above")

    def _print_lines(self, result: ImportResult, listed: Sequence[Rejected]) -> None:
        if self.dry_run:
            print("A dry run: this is what an import would do, and nothing was changed.")
        if not self.daily:
            print(
                f"read {result.read:,}, imported {result.imported:,}, updated {result.updated:,}, "
                f"unchanged {result.unchanged:,}, left out {result.rejected_count:,}"
            )
            if result.numbered:
                print(
                    f"{counted(result.numbered, 'row repeats', 'rows repeat')} the id and the submission time of "
                    "another row with other times: they are tasks, numbered ID_2, ID_3 …"
                )
        if self.dry_run:
            for why, number in Counter(row.why for row in result.rejected).most_common(LISTED):
                print(f"left out {number:>6,}: {why}")
        for row in listed[:LISTED]:
            print(f"left out: {row.where}: {row.why}", file=sys.stderr)
        if len(listed) > LISTED:
            print(f"… and {len(listed) - LISTED:,} more; --json lists them", file=sys.stderr)


_HOW = ("history", "cluster", "daily", "dry_run", "as_json")
_ROWS = (*_HOW, "rules", "pseudonymise")


@app.callback()
def _import() -> None:
    pass


@app.command()
@with_options(ImportOptions)
def sacct(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE|-", help="Output of `sacct -P` or `sacct --json`; - is standard input."),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run sacct on this machine.")] = False,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="C", help=r"Delimiter between fields, \t for a tab; by default detected from the header."
        ),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="With --run: start of the period; by default where the last import ended."
        ),
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="With --run: end of the period; by default now.")
    ] = "",
    encoding: Annotated[str, typer.Option(metavar="NAME", help="utf-8, latin-1 or utf-16.")] = "utf-8",
    *,
    options: ImportOptions,
) -> None:
    """Import what sacct prints: text with any delimiter, JSON, or by running it."""
    from berth.history.importing.sacct import import_jobs, import_text, run_sacct
    from berth.history.importing.sacct_json import json_rows

    if run == (file is not None):
        raise SettingError(
            "import sacct needs one of FILE, - for standard input, and --run, which runs sacct"
        )
    how = options.of_rows(encoding)
    path = None if file == "-" else Path(str(file))
    mark = None if delimiter is None else delimiter.replace("\\t", "\t")
    with options.store("sacct --run" if run else f"sacct {file}") as store:
        if run:
            result = run_sacct(store, how, since=since, until=until)
        elif path is not None and _is_json(path):
            rejections = Rejections()
            result = import_jobs(store, json_rows(path, rejections), how, str(path), rejections)
        else:
            result = import_text(store, path, how, delimiter=mark)
        options.print(result)


@app.command()
@with_options(ImportOptions, *_ROWS, "shards_per_gpu", "nodes")
def slurmdbd(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            envvar="BERTH_SLURMDBD",
            help="mysql+pymysql://user:password@host:port/slurm_acct_db",
        ),
    ],
    since: Annotated[
        str,
        typer.Option(
            metavar="DATE",
            help="Only jobs that ended since then; by default from a day before the last import's end.",
        ),
    ] = "",
    decisions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The decisions.jsonl of `berth slurm run`; adds to the jobs the use that its Epilogs measured.",
        ),
    ] = None,
    *,
    options: ImportOptions,
) -> None:
    """Import jobs from the database of a live slurmdbd, without writing to it.

    The address may be given in the environment as BERTH_SLURMDBD, which keeps its password out of process lists.
    """
    from berth.history.importing.slurmdbd import import_slurmdbd

    how, since_s = options.of_rows(), moment_ms(since, "--since") // 1000 if since else None
    with options.store(f"slurmdbd {options.cluster}".strip()) as store:
        found = import_slurmdbd(store, url, how, since_s=since_s)
        if decisions is not None:
            from berth.history.importing.samples import import_usage
            from berth.live.slurm.job_log import measured

            import_usage(store, measured(read_decisions(decisions), options.cluster))
        options.print(found)


@app.command("csv")
@with_options(ImportOptions, *_ROWS, "timezone")
def csv_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table with a header line.")],
    columns: Annotated[
        list[str],
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN,…",
            help="Columns of the fields job, submit, start, end, user, gpus, …; repeatable.",
        ),
    ],
    *,
    options: ImportOptions,
) -> None:
    """Import any table of jobs as CSV."""
    from berth.history.importing.sacct import import_rows

    chosen, how = read_map(",".join(columns)), options.of_rows()
    rejections = Rejections()
    rows = csv_rows(file, chosen, rejections)
    with options.store(f"csv {file}") as store:
        result = import_rows(store, rows, header_of(chosen), how, str(file), rejections, tasks=True)
        options.print(result)


def _add_source(name: str, reader: str, what: str, help_text: str) -> None:
    """Add a command for an accounting whose reader, `MODULE:FUNCTION`, yields jobs in typed columns."""

    def read(file: Path, *, options: ImportOptions) -> None:
        from berth.history.importing.sacct import import_jobs

        module, _, function = reader.partition(":")
        source = import_module(f"berth.history.importing.{module}")
        how, rejections = options.of_rows(), Rejections()
        jobs = getattr(source, function)(file, rejections)
        with options.store(f"{name} {file}") as store:
            result = import_jobs(store, jobs, how, str(file), rejections, source.ABSENT)
            options.print(result)

    read.__annotations__["file"] = Annotated[Path, typer.Argument(metavar="FILE", help=what)]
    app.command(name, help=help_text)(with_options(ImportOptions, *_ROWS)(read))


_add_source(
    "pbs",
    "pbs:pbs_rows",
    "An accounting log of PBS, such as 20261121.",
    "Import an accounting log of PBS Professional, OpenPBS or Torque.",
)
_add_source(
    "lsf",
    "lsf:lsf_rows",
    "LSF's lsb.acct, or one that was archived.",
    "Import LSF's accounting file lsb.acct.",
)
_add_source(
    "pods",
    "pods:pod_rows",
    "Output of `kubectl get pods --all-namespaces -o json`.",
    "Import finished pods of Kubernetes that asked for GPUs.",
)


@app.command()
@with_options(ImportOptions, "history", "pseudonymise", "daily", "dry_run", "as_json")
def records(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.parquet", help="Records, as the simulator writes them.")
    ],
    cluster: ClusterName = "simulated",
    *,
    options: ImportOptions,
) -> None:
    """Import berth's own records, such as a simulation's; give each simulation a --cluster of its own."""
    from berth.history.importing.simulated import import_records

    how = replace(options, cluster=cluster).of_rows()
    with options.store(f"records {file}") as store:
        options.print(import_records(store, file, how))


@app.command()
@with_options(ImportOptions, "history", "daily", "dry_run", "as_json")
def asi(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Alibaba's asi_opensource_pod_hourly, unpacked."),
    ],
    cluster: ClusterName = "asi",
    *,
    options: ImportOptions,
) -> None:
    """Import Alibaba's ASI trace: pods with their GPU use by the hour."""
    from berth.history.importing.simulated import import_records

    if next(folder.rglob("*.parquet"), None) is None:
        raise HistoryError(
            f"{folder}: no folder of Parquet files; expected day=D/hour=H/part-000.parquet in it"
        )
    with options.store(f"asi {folder}") as store:
        options.print(import_records(store, folder, Options(cluster), RECORDS))


@app.command()
def limits(
    qos: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output of `sacctmgr show qos -P`.")
    ] = None,
    assoc: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output of `sacctmgr show assoc -P`.")
    ] = None,
    history: NamedHistory = Path("history"),
    as_json: AsJson = False,
) -> None:
    """Store the limits of Slurm's QOS and associations, so that replays of the history obey them."""
    from berth.experiments.slurm_limits import keep_limits
    from berth.history.store.folder import open_history

    if qos is None and assoc is None:
        raise SettingError("import limits needs --qos FILE, --assoc FILE or both")
    found = keep_limits(open_history(history, must_exist=True).folder, qos, assoc)
    if as_json:
        print(json.dumps({"qos": len(found.qos), "associations": len(found.associations)}))
        return
    print(
        f"kept {len(found.qos):,} QOS and {len(found.associations):,} associations in {history}; replays obey their"
        " limits on GPUs, nodes and running jobs"
    )


@app.command()
@with_options(ImportOptions, *_HOW)
def samples(
    spool: Annotated[
        Path, typer.Argument(metavar="DIR", help="A spool of `berth sample`, or one segment of it.")
    ],
    *,
    options: ImportOptions,
) -> None:
    """Import what `berth sample` measured, as uGPUcore and uGPUmem of the jobs."""
    from berth.history.importing.samples import import_samples

    with options.store(f"samples {spool}") as store:
        options.print(import_samples(store, spool, options.cluster))


@app.command()
@with_options(ImportOptions, *_HOW)
def series(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="Answers of Prometheus to range queries (JSON), or text of DCGM's exporter."
        ),
    ],
    *,
    options: ImportOptions,
) -> None:
    """Import GPU series of DCGM's exporter or of jobstats, instead of berth's own samples."""
    from berth.history.importing.series import import_series

    with options.store(f"series {' '.join(map(str, files))}") as store:
        options.print(import_series(store, files, options.cluster))


def _refit(history: Path) -> None:
    """Learn the waits anew where the history keeps a model of them; one that cannot be is kept, with a warning."""
    if not (history / "waiting.json").exists():
        return  # spares an import the libraries
    from berth.waiting.refit import learn_anew

    try:
        learn_anew(history)
    except BerthError as error:
        print(f"warning: the model of waits is the one before: {error}", file=sys.stderr)


def _remove_new(history: Path, before: Set[Path] | None) -> None:
    """Remove what an import has made in this folder, and the folder where there was none before."""
    if before is None:
        shutil.rmtree(history, ignore_errors=True)
        return
    for path in {*history.iterdir()} - before:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_json(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip()[:1] == b"{"
    except OSError:
        return False  # the reader says what is wrong
