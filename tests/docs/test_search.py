"""The first page that the search of the built docs finds answers what a stranger asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("playwright")
pytest.importorskip("sphinx", reason="the site is built by Sphinx")
from tests.console.browser import CHROMIUM, PATIENCE_MS, chromium

DOCS = Path(__file__).resolve().parents[2] / "docs"
ANSWERS = {
    "half a gpu": "half-a-gpu",
    "why does my job wait": "why-a-job-waits",
    "uninstall": "uninstall",
    "upgrade": "upgrade",
    "notify when job ends": "told-when-a-job-ends",
    "jupyter notebook": "notebook",
    "write my own policy": "own-policy",
    "import slurm history": "import-slurm",
    "out of memory": "out-of-memory",
    "how many gpus do I need": "how-many-gpus",
    "kubernetes install": "onto-kubernetes",
    "slurm install": "onto-slurm",
    "docker container gpu limit": "share-with-containers",
    "array of jobs": "many-parameters",
    "restart": "survive-a-restart",
    "priority of an urgent job": "urgent-job",
    "idle gpus of users": "who-wastes-gpus",
    "limit gpu memory of a program": "limit-a-program",
    "dependencies between jobs": "one-after-another",
    "simulate my trace": "own-trace",
    "default options": "defaults",
    "compare policies on my history": "another-policy",
    "share one GPU by half": "half-a-gpu",
    "read my trace": "own-trace",
    "put it onto a cluster": "onto-slurm",
    "email": "told-when-a-job-ends",
    "cancel a job": "cancel-a-job",
}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_a_stranger_searches_for_is_answered_by_the_first_page_found(tmp_path: Path) -> None:
    assert {f"{page}.md" for page in ANSWERS.values()} | {"index.md"} == {
        path.name for path in (DOCS / "how-to").glob("*.md")
    }
    subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-b",
            "html",
            "-d",
            str(tmp_path / "read"),
            DOCS,
            tmp_path / "site",
        ],
        check=True,
        capture_output=True,
    )
    found = {}
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        for question in ANSWERS:
            page.goto(f"file://{tmp_path}/site/search.html?q={quote(question)}")
            page.locator("ul.search li a").first.wait_for()  # they are listed best first
            href = page.locator("ul.search li a").first.get_attribute("href") or ""
            found[question] = href.partition(".html")[0]
    assert found == {question: f"how-to/{name}" for question, name in ANSWERS.items()}
