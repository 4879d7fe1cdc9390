"""What is documented runs: examples, the blocks of the README, the policy of the docs."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from berth.cli.app import app, load
from berth.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BIN = Path(sys.executable).parent


def run(command: list[str], cwd: Path) -> str:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_stands_beside_it(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.syspath_prepend(example.parent)
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out == example.with_suffix(".out").read_text()


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    for block in blocks(ROOT / "README.md", "python"):
        script = tmp_path / "block.py"
        script.write_text(block)
        run([sys.executable, str(script)], tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 1_000_000


OTHERS = (
    "trace fetch",
    "jobs.csv",
    "jobs.txt",
    "partition",
    "train.py",
    "berth stats",
    "berth digest",
    "berth report",
    "predict-wait",
    "berth sample",
    "berth advise",
    "berth size --from-history",
    "berth train",
    "berth console",
    *("berth up", "berth submit", "berth wait", "berth top"),
)
"""What marks a line that needs the network, a file or history of the reader's, a GPU, or many minutes."""


OF_OTHERS = {
    *("--all-namespaces", "--allusers", "--annotation", "--config", "--duplicates", "--field-selector"),
    *("--gpus-per-task", "--gres", "--hooks-dir", "--ipc", "--shm-size", "--starttime", "--target"),
    *("--calibrate", "--former", "--minutes", "--no-requeue", "--nvml", "--wrap"),
}
"""Options of Slurm, Podman, kubectl and this repository's scripts that the docs name."""


def test_every_option_in_the_docs_exists() -> None:
    named = {
        option
        for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        if page.name != "changelog.md"
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", page.read_text())
    }
    known: set[str] = set()
    commands: list[Any] = [typer.main.get_command(app), *map(load, COMMANDS)]
    while commands:
        command = commands.pop()
        commands += filter(None, getattr(command, "commands", {}).values())
        known |= {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    assert sorted(named - known) == sorted(OF_OTHERS)


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """All but those that install, need the network, or name a file of the reader's."""
    lines = [line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()]
    ours = [line for line in lines if line.startswith("berth ") and not any(name in line for name in OTHERS)]
    assert len(ours) == 2
    for line in ours:
        run(["bash", "-ec", line], tmp_path)


def test_the_policy_of_the_docs_works_as_written(tmp_path: Path) -> None:
    page = ROOT / "docs" / "policies.md"
    (tmp_path / "mine.py").write_text(blocks(page, "python")[0])
    command, _ = (line for block in blocks(page, "sh") for line in block.splitlines())
    assert "mine:emptiest_node" in run(["bash", "-ec", command], tmp_path)


@pytest.mark.slow
def test_the_knowledge_of_the_docs_works_as_written_and_changes_what_is_done(tmp_path: Path) -> None:
    page = ROOT / "docs" / "policies.md"
    (tmp_path / "mine.py").write_text(blocks(page, "python")[1])
    _, command = (line for block in blocks(page, "sh") for line in block.splitlines())
    own = run(["bash", "-ec", f"{command} --json"], tmp_path)
    user = run(["bash", "-ec", f"{command.replace('mine:LikeTheLast', 'user')} --json"], tmp_path)
    told, other = json.loads(own), json.loads(user)
    assert (told["knowledge"], other["knowledge"]) == ("mine:LikeTheLast", "user")
    assert told["runs"] != other["runs"]


def test_the_interference_model_of_the_docs_works_as_written(tmp_path: Path) -> None:
    page = ROOT / "docs" / "interference.md"
    (tmp_path / "mine.py").write_text(blocks(page, "python")[0])
    (command,) = (line for block in blocks(page, "sh") for line in block.splitlines())
    assert "400 jobs" in run(["bash", "-ec", command], tmp_path)


@pytest.mark.slow
def test_two_profiles_change_the_placement_as_the_docs_say(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="training needs the extra 'learn'")
    page = ROOT / "docs" / "colocation.md"
    (tmp_path / "make_profiles.py").write_text(blocks(page, "python")[0])
    run([sys.executable, "make_profiles.py"], tmp_path)
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    told = {line: run(["bash", "-ec", line], tmp_path) for line in lines}
    minutes = {
        line: float(re.search(r"Makespan ↓ +minutes +([\d.]+)", text)[1])  # type: ignore[index]
        for line, text in told.items()
        if line.startswith("berth simulate")
    }
    without, shipped, own = minutes.values()
    assert without == 28.0
    assert max(shipped, own) < 0.7 * without


@pytest.mark.slow
@pytest.mark.parametrize(("page", "first", "package"), [("colocation", 1, "highspy"), ("learning", 0, "jax")])
def test_the_python_of_the_docs_prints_what_stands_below_it(
    page: str, first: int, package: str, tmp_path: Path
) -> None:
    pytest.importorskip(package, reason="the examples need the extra")
    path = ROOT / "docs" / f"{page}.md"
    scripts, printed = blocks(path, "python")[first:], blocks(path, "text")
    assert len(scripts) == len(printed) > 0
    for script, text in zip(scripts, printed, strict=True):
        (tmp_path / "block.py").write_text(script)
        assert run([sys.executable, "block.py"], tmp_path) == text


FIRST_STEPS = sorted((ROOT / "docs" / "first-steps").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", FIRST_STEPS, ids=lambda path: path.stem)
def test_first_steps_run_as_written(page: Path, tmp_path: Path) -> None:
    """Every block after `<!-- runs -->`, in the page's order and in one folder."""
    blocks = re.findall(r"<!-- runs -->\n```(sh|python)\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks or page.stem == "one-machine", "the queue of one machine is tried by the demo's own test"
    for language, text in blocks:
        (tmp_path / "block").write_text(text)
        run(
            [
                sys.executable if language == "python" else "bash",
                *(["-e"] if language == "sh" else []),
                "block",
            ],
            tmp_path,
        )


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Among them: a link to a page or a heading that is not there, and a page that no other leads to."""
    pytest.importorskip("sphinx", reason="the site is built by Sphinx")
    run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            str(ROOT / "docs"),
            "site",
            "-d",
            "kept",
        ],
        tmp_path,
    )
    for name in ("index", "api", "first-steps/operator", "results"):
        assert (tmp_path / "site" / f"{name}.html").exists(), name
    assert "sjf" in (tmp_path / "site" / "searchindex.js").read_text(), "the search needs no network"


def test_links_between_pages_lead_somewhere() -> None:
    fronts = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    pages = (*fronts, *sorted((ROOT / "docs").rglob("*.md")))
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_policy_has_a_line_in_the_docs() -> None:
    from berth.policies import names

    page = (ROOT / "docs" / "reference" / "policies.md").read_text()
    assert [name for name in names() if f"**`{name}`**" not in page] == []


def test_every_dependency_has_a_line_in_the_docs() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    named = [re.split(r"[>=\[]", requirement)[0] for requirement in wanted]
    assert [name for name in named if name != "berth-gpu" and name not in page] == []
