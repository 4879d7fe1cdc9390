"""Mistakes that one makes with accounting, from the command line: one line that says what to do, and status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from berth.errors import HistoryError
from berth.history.importing.sacct import import_text
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from tests import command
from tests.history import exports


def berth(*words: object) -> tuple[int, str, str]:
    """Status, output and errors of a command."""
    done = command.berth(*words)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:////tmp/x.db", "slurmdbd keeps its jobs in MySQL or MariaDB, not in 'sqlite'"),
        ("postgresql://a:secret@h/d", "slurmdbd keeps its jobs in MySQL or MariaDB, not in 'postgresql'"),
        ("mysql+pymysql://a:secret@h:port/d", "no address of a database"),
        ("odd", "no address of a database"),
    ],
)
def test_an_address_that_is_no_slurmdbds_is_told_in_a_line(tmp_path: Path, url: str, told: str) -> None:
    wanted = "expected mysql+pymysql://user:password@host/database"
    found = berth("import", "slurmdbd", url, "--history", tmp_path / "h")
    assert found == (2, "", f"berth: {told}; {wanted}\n")


@pytest.mark.parametrize(
    ("words", "conditions"),
    [
        (("report", "--from", "2030-01-01"), "--from 2030-01-01"),
        (("report", "--only", "user=nobody", "--to", "2027-01-01"), "--to 2027-01-01, --only user=nobody"),
    ],
)
def test_a_page_with_nothing_in_it_is_not_written(
    tmp_path: Path, words: tuple[str, ...], conditions: str
) -> None:
    import_text(
        open_history(tmp_path / "h"), exports.write(tmp_path / "f", [exports.line(JobIDRaw=1)]), Options("c")
    )
    out = tmp_path / "out.html"
    status, output, errors = berth(*words[0].split(), out, *words[1:], "--history", tmp_path / "h")
    assert (status, output, out.exists()) == (2, "", False)
    assert errors == (
        f"berth: {tmp_path / 'h'} has nothing to show under {conditions}; "
        "`berth stats --by application,month` lists what it has\n"
    )


def test_a_question_that_no_attempt_answers_is_refused(tmp_path: Path) -> None:
    import_text(
        open_history(tmp_path / "h"), exports.write(tmp_path / "f", [exports.line(JobIDRaw=1)]), Options("c")
    )
    for words, told in (
        (("--only", "user=nobody"), "has nothing to show under --only user=nobody; "),
        (("--by", "user,user"), "the dimension 'user' is named twice"),
        (("--by", "job,user"), "'job' stands alone, without other dimensions"),
    ):
        status, output, errors = berth("stats", *words, "--history", tmp_path / "h")
        assert (status, output) == (2, "")
        assert told in errors


def test_an_import_that_takes_nothing_over_fails(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("id,made,began,done,cards\n1,1767225600,1767225660,1767229260,eins\n")
    fields = "job=id,submit=made,start=began,end=done,gpus=cards"
    for _ in range(2):
        status, output, errors = berth("import", "csv", table, "--map", fields, "--history", tmp_path / "h")
        assert (status, "left out 1" in output) == (2, True)
        assert errors.endswith("berth: nothing was imported: every row was left out, for the reasons above\n")
        assert not (tmp_path / "h").exists()
    words = ("import", "csv", table, "--map", fields, "--json", "--history", tmp_path / "h")
    status, output, errors = berth(*words)
    assert (status, json.loads(output)["rejected_count"], (tmp_path / "h").exists()) == (2, 1, False)
    assert errors == "berth: nothing was imported: every row was left out, for the reasons above\n"
    mine = tmp_path / "h" / "mine"
    mine.parent.mkdir()
    mine.write_text("")
    assert berth("import", "csv", table, "--map", fields, "--history", mine.parent)[0] == 2
    assert [*mine.parent.iterdir()] == [mine]


def test_an_import_that_takes_nothing_over_leaves_the_history_that_was_there(tmp_path: Path) -> None:
    export = exports.write(tmp_path / "f", [exports.line(JobIDRaw=1)])
    import_text(open_history(tmp_path / "h"), export, Options("c"))
    table = tmp_path / "jobs.csv"
    table.write_text("id,made,began,done,cards\n1,1767225600,1767225660,1767229260,eins\n")
    fields = "job=id,submit=made,start=began,end=done,gpus=cards"
    assert berth("import", "csv", table, "--map", fields, "--history", tmp_path / "h")[0] == 2
    assert len(open_history(tmp_path / "h")) == 1


def test_a_map_may_be_given_in_parts(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("id,made,began,done\n1,1767225600,1767225660,1767229260\n")
    words = ("--map", "job=id,submit=made", "--map", "start=began", "--map", "end=done")
    status, output, _ = berth("import", "csv", table, *words, "--history", tmp_path / "h")
    assert (status, len(open_history(tmp_path / "h"))) == (0, 1), output


def test_a_place_that_is_not_there_is_named_as_it_was_given(tmp_path: Path) -> None:
    import_text(
        open_history(tmp_path / "h"), exports.write(tmp_path / "f", [exports.line(JobIDRaw=1)]), Options("c")
    )
    place = tmp_path / "none" / "x.html"
    found = berth("report", place, "--history", tmp_path / "h")
    assert found == (2, "", f"berth: {place}: there is no folder {place.parent}; make it first\n")


def test_an_import_is_taken_back_by_command(tmp_path: Path) -> None:
    file = exports.write(tmp_path / "f", [exports.line(JobIDRaw=1), exports.line(JobIDRaw=2)])
    words = ["--history", tmp_path / "h"]
    assert berth("import", "sacct", file, *words)[0] == 0
    status, _, errors = berth("import", "sacct", file, "--cluster", "neuron", *words)
    assert (status, "berth history undo" in errors) == (2, True)
    status, output, _ = berth("history", "undo", *words)
    assert (status, output.endswith(f"sacct {file}: imported 2, updated 0\n")) == (0, True)
    assert berth("history", "imports", *words)[:2] == (0, "no import can be taken back\n")
    assert berth("history", "undo", *words)[0] == 2


def test_a_line_that_is_a_carriage_return_alone_is_named(tmp_path: Path) -> None:
    file = exports.write(tmp_path / "f", [exports.line(JobIDRaw=1), "\r", exports.line(JobIDRaw=2)])
    with pytest.raises(HistoryError, match="line 3: nothing but a carriage return"):
        import_text(open_history(tmp_path / "h"), file, Options("c"))
