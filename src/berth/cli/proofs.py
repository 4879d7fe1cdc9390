"""What `berth partition prove` found, as rows, a table, sentences and a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from berth.cli.output import plain_table
from berth.partition.proof import Finding, Proof, Verdict
from berth.partition.sizes import size_text

if TYPE_CHECKING:
    from rich.table import Table

_HEAD = ("way", "result", "given", "seen by NVML", "what it does")


KNOWN: Mapping[str, str] = {
    "ipc-free": "counted for its maker alone; CUDA's IPC gives no sign that others hold it",
    "no-environment": "held in a container, where /etc/ld.so.preload names the library",
    "counters-restored": "shown by NVML within two seconds, as memory that is not counted",
    "counters-removed": "held in a container and in partitions of another user, which cannot remove them",
}
"""Ways that docs/partition.md says pass berth's limit, and how each is closed."""


def _result(finding: Finding, known: Mapping[str, str]) -> str:
    if finding.verdict is Verdict.REFUSED:
        return f"refused {finding.why}"
    if finding.verdict is Verdict.PASSED and finding.way.name in known:
        return "passed, as documented"
    return finding.verdict.value


def rows(proof: Proof, known: Mapping[str, str]) -> list[dict[str, object]]:
    """One row a way, with what was tried and where."""
    return [
        {
            "way": finding.way.name,
            "what": finding.way.what,
            "verdict": finding.verdict.value,
            "documented": finding.way.name in known,
            "given_bytes": finding.given_bytes,
            "seen_bytes": finding.seen_bytes,
            "why": finding.why,
            "limit_bytes": proof.limit_mib << 20,
            "wall": proof.wall,
            "gpu": proof.gpu.uuid,
            "driver": proof.driver,
        }
        for finding in proof.findings
    ]


def _cells(proof: Proof, known: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [
        (
            finding.way.name,
            _result(finding, known),
            "-" if finding.verdict is Verdict.UNTRIED else size_text(finding.given_bytes),
            "-" if finding.seen_bytes is None else size_text(finding.seen_bytes),
            finding.way.what,
        )
        for finding in proof.findings
    ]


def table(proof: Proof, known: Mapping[str, str]) -> Table:
    return plain_table(_HEAD, _cells(proof, known), left=len(_HEAD))


def sentences(proof: Proof, known: Mapping[str, str]) -> list[str]:
    """What was found, in one sentence, and what was not tried in another."""
    passed, untried = proof.of(Verdict.PASSED), proof.of(Verdict.UNTRIED)
    refused = proof.of(Verdict.REFUSED)
    new = [finding.way.name for finding in passed if finding.way.name not in known]
    tried = len(proof.findings) - len(untried)
    count = f"{tried - len(passed) - len(refused)} of {tried} ways"
    held = f"{proof.wall}: a limit of {proof.limit_mib} MiB held against {count}"
    where = f"on GPU {proof.gpu.uuid}, driver {proof.driver or 'unknown'}"
    ends = f"passed: {', '.join(new)}" if new else "no way passed that the documentation does not name"
    found = [f"{held} {where}; {ends}."]
    if len(passed) > len(new):
        named = [finding.way.name for finding in passed if finding.way.name in known]
        found.append(f"Documented ways that passed: {', '.join(named)}.")
        found += [f"{name}: {known[name]}." for name in named]
    if refused:
        found.append(f"Refused what fits: {', '.join(finding.way.name for finding in refused)}.")
    if untried:
        found.append(f"Not tried here: {', '.join(f'{each.way.name} ({each.why})' for each in untried)}.")
    return found


def page(proof: Proof, known: Mapping[str, str], path: Path) -> None:
    """Write it as HTML; the file is there whole or not at all."""
    from berth.report.report import write_page

    write_page(
        "proof.html",
        path,
        title="Ways past a limit of GPU memory",
        answers=sentences(proof, known),
        head=_HEAD,
        rows=_cells(proof, known),
    )
