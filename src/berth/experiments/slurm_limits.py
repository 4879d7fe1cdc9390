"""Limits of Slurm's QOS and associations, kept beside a history for its replays.

They are kept as `sacctmgr show qos -P` and `sacctmgr show assoc -P` print them. Of each limit the GPUs (`gres/gpu`),
the nodes and the number of running jobs are heeded:

- `GrpTRES` and `GrpJobs` of a QOS, of an account with all below it, and of a user in an account;
- `MaxTRESPU`, `MaxJobsPU`, `MaxTRESPA` and `MaxJobsPA` of a QOS;
- `MaxJobs` of an association.

All hold at once. In Slurm a QOS takes the place of the association's limit of the same name.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from berth.errors import HistoryError, cause_of
from berth.files import write_whole
from berth.policies.schemes.limits import GROUP, Limit

QOS, ASSOCIATIONS = "sacctmgr-qos.txt", "sacctmgr-assoc.txt"
"""Names of the files in a history's folder."""
_NEEDED = {QOS: ("Name",), ASSOCIATIONS: ("Cluster", "Account", "User")}
"""Columns without which a file is refused."""
_SHOWN = {QOS: "qos", ASSOCIATIONS: "assoc"}
_Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SlurmLimits:
    """The limits of one Slurm."""

    qos: Mapping[str, _Row] = field(default_factory=dict)
    """Rows by name of the QOS."""
    associations: Mapping[tuple[str, str, str], _Row] = field(default_factory=dict)
    """Rows by cluster, account and user, whose name is empty for the account itself."""

    def of(self, cluster: str, user: str, account: str, qos: str) -> Iterator[Limit]:
        """The limits that a job counts to, each of a group."""
        row = self.qos.get(qos, {})
        yield from _limit(f"qos {qos}", row, "GrpTRES", "GrpJobs")
        yield from _limit(f"user {user} of qos {qos}", row, "MaxTRESPU", "MaxJobsPU")
        yield from _limit(f"account {account} of qos {qos}", row, "MaxTRESPA", "MaxJobsPA")
        clusters = {key[0] for key in self.associations}
        if len(clusters) == 1:
            (cluster,) = clusters
        own = dict(self.associations.get((cluster, account, user), {}))
        above, seen = account, set[str]()
        while above and above not in seen:
            seen.add(above)
            of_account = self.associations.get((cluster, above, ""), {})
            yield from _limit(f"account {above}", of_account, "GrpTRES", "GrpJobs")
            own["MaxJobs"] = own.get("MaxJobs") or of_account.get("MaxJobs", "")
            above = of_account.get("ParentName", "")
        yield from _limit(f"user {user} of account {account}", own, "GrpTRES", "GrpJobs")
        yield from _limit(f"running of user {user} in account {account}", own, "", "MaxJobs")


def _limit(name: str, row: _Row, tres: str, jobs: str) -> Iterator[Limit]:
    """The limit of a group by two columns of a row; none if both are empty."""
    amounts: dict[str, int] = {}
    for part in row.get(tres, "").split(","):
        what, _, amount = part.partition("=")
        if what in _COUNTED and amount.isdecimal():
            amounts[_COUNTED[what]] = int(amount)
    if row.get(jobs, "").isdecimal():
        amounts["running"] = int(row[jobs])
    if amounts:
        yield Limit(GROUP, name, **amounts)


_COUNTED = {"gres/gpu": "gpus", "node": "nodes"}
_TRES = ("GrpTRES", "MaxTRESPU", "MaxTRESPA")
_JOBS = ("GrpJobs", "MaxJobsPU", "MaxJobsPA", "MaxJobs")
_LONG = {
    "MaxTRESPerUser": "MaxTRESPU",
    "MaxJobsPerUser": "MaxJobsPU",
    "MaxTRESPerAccount": "MaxTRESPA",
    "MaxJobsPerAccount": "MaxJobsPA",
    "Par Name": "ParentName",
}


def slurm_limits(folder: Path) -> SlurmLimits:
    """The limits that a history's folder keeps, if any. Raises HistoryError for a damaged file."""
    qos, associations = folder / QOS, folder / ASSOCIATIONS
    return SlurmLimits(
        {row["Name"]: row for row in _rows(qos, QOS)} if qos.exists() else {},
        {
            (row["Cluster"], row["Account"], row["User"]): row
            for row in _rows(associations, ASSOCIATIONS)
            if not row.get("Partition")  # Slurm's limits of a user in one partition are not heeded
        }
        if associations.exists()
        else {},
    )


def keep_limits(folder: Path, qos: Path | None, associations: Path | None) -> SlurmLimits:
    """Keep what sacctmgr printed in a history's folder, in the place of what was there; returns what the folder has
    then. Raises HistoryError for a file that is none, and keeps neither then."""
    given = {
        name: source for name, source in ((QOS, qos), (ASSOCIATIONS, associations)) if source is not None
    }
    for name, source in given.items():
        _rows(source, name)
    for name, source in given.items():
        write_whole(folder / name, source.read_bytes())
    return slurm_limits(folder)


def _rows(path: Path, name: str) -> list[_Row]:
    """The rows of what sacctmgr printed and is kept under `name`, by the short names of its columns."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise HistoryError(f"{path} cannot be read: {cause_of(error)}") from error
    header, *rows = csv.reader(lines or [""], delimiter="|", quoting=csv.QUOTE_NONE)
    names = [_LONG.get(column, column) for column in header]
    if missing := [column for column in _NEEDED[name] if column not in names]:
        raise HistoryError(
            f"{path}, line 1: no column {', '.join(missing)}; expected what `sacctmgr show {_SHOWN[name]} -P` prints,"
            " with its header"
        )
    found = []
    for line, row in enumerate(rows, 2):
        if row and len(row) < len(names):
            raise HistoryError(
                f"{path}, line {line}: {len(row)} columns; expected {len(names)}, as the header has"
            )
        found.append(dict(zip(names, row, strict=False)))
        for column, value, amount in _amounts(found[-1]):
            if amount not in ("", "-1") and not amount.isdecimal():
                raise HistoryError(
                    f"{path}, line {line}, column {column}: '{value}'; expected a whole number"
                )
    return [row for row in found if row]


def _amounts(row: _Row) -> Iterator[tuple[str, str, str]]:
    """What is heeded of a row, as printed: the column, its value, and the amount in it."""
    for column in _JOBS:
        yield column, row.get(column, ""), row.get(column, "").strip()
    for column in _TRES:
        for part in row.get(column, "").split(","):
            what, _, amount = part.partition("=")
            if what in _COUNTED:
                yield column, part, amount
