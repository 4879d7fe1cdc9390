"""What people come for, from a fresh start on fake GPUs, in a real Chromium: a user, an operator, a researcher."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berth.console.roles import Role
from tests.console.browser import CHROMIUM, PATIENCE_MS, chromium
from tests.console.serving import served
from tests.console.world import World
from tests.live.local.conftest import native as native
from tests.live.local.conftest import world as world
from tests.live.local.test_enforcement import gpu_job
from tests.live.local.world import ROOT

ME = pwd.getpwuid(os.geteuid()).pw_name
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    # Playwright's event loop and uvicorn's thread each keep a socket until the end of the session.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Theatre:
    """A queue, a console over it, and a browser."""

    def __init__(self, queue: Any, console: World, address: str, browser: Any) -> None:
        self.queue, self.console, self.address = queue, console, address
        self._browser = browser

    def page(self, user: str, role: Role) -> Any:
        """A window of somebody who opens the address with a token."""
        context = self._browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(f"{self.address}/login?token={self.console.token(user, role)}")
        return page

    def open(self, page: Any, path: str) -> None:
        page.goto(self.address + path)

    def agree(self, page: Any) -> str:
        """Say yes to the question that is asked; gives the command that stands beside it."""
        dialog = page.locator("dialog[open]")
        command: str = dialog.locator("pre").inner_text()
        dialog.get_by_role("button", name="Yes").click()
        page.locator("#told", has_text=" ").wait_for()
        return command


@pytest.fixture
def theatre(world: Any, tmp_path: Path) -> Iterator[Theatre]:
    console = World(
        tmp_path / "console",
        local_socket=Path(world.places.socket),
        history=Path(world.places.history),
        actions=True,
        operators=frozenset({"olga"}),
    )
    with served(console) as address, chromium() as browser:
        yield Theatre(world, console, address, browser)


def test_a_user_sees_why_a_job_waits_holds_and_releases_it_and_reads_its_output(theatre: Theatre) -> None:
    holder = theatre.queue.submit("sleep 600", gpus=2)
    mine = theatre.queue.submit("echo the loss is 0.25; sleep 600", gpus=1)
    page = theatre.page(ME, Role.USER)
    theatre.open(page, "/queue")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=mine, exact=True))
    assert "waiting" in row.inner_text()
    row.get_by_role("link").click()
    page.get_by_role("heading", name=f"Job {mine}: waiting").wait_for()
    page.get_by_role("heading", name="Why it waits").wait_for()

    page.get_by_role("button", name="Hold").click()
    assert theatre.agree(page) == f"berth hold {mine}"
    theatre.queue.until(lambda: theatre.queue.state_of(mine) == "held", "the job is held")
    page.get_by_role("button", name="Release").click()
    assert theatre.agree(page) == f"berth release {mine}"
    theatre.queue.ask("cancel", ids=[holder])
    page.get_by_role("heading", name=f"Job {mine}: running").wait_for()
    page.locator("pre.output", has_text="the loss is 0.25").wait_for()


def test_an_operator_sees_a_stranger_drains_the_gpu_changes_the_policy_and_finds_both_in_the_log(
    theatre: Theatre,
) -> None:
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(ROOT / "build" / "native" / "fake"),
        "BERTH_FAKE_CARD": theatre.queue.places.fake_card,
    }
    leaves = theatre.queue.folder / "leaves"
    stranger = subprocess.Popen(gpu_job(60_000, leaves), env=environment, stdout=subprocess.DEVNULL)
    try:
        page = theatre.page("olga", Role.OPERATOR)
        theatre.open(page, "/now")
        page.locator("#legend", has_text="stranger 1").wait_for()
        page.locator("#tiles button").first.click()
        page.locator("#detail", has_text=f"{stranger.pid}").wait_for()
        page.locator("#detail").get_by_role("button", name="Drain").click()
        assert theatre.agree(page).startswith("berth drain ")
        page.locator("#detail").get_by_role("button", name="Use it again").wait_for()
    finally:
        stranger.kill()
        stranger.wait()
    page.locator("#operate summary").click()
    page.locator("form[data-action=policy] input[name=value]").fill("sjf+best-fit")
    page.get_by_role("button", name="Change the policy").click()
    assert theatre.agree(page) == "berth policy sjf+best-fit"
    theatre.queue.until(
        lambda: theatre.queue.ask("status")["policy"] == "sjf+best-fit", "the policy has changed"
    )

    def done() -> list[tuple[str, str]]:
        told = theatre.console.app.state.audit.last(100)
        return sorted((line.user, line.action) for line in told if line.result == "done")

    # The queue has changed a moment before the log says so.
    theatre.queue.until(lambda: done() == [("olga", "drain"), ("olga", "policy")], "both are in the log")


def test_a_researcher_asks_what_if_and_a_colleague_opens_the_address(theatre: Theatre) -> None:
    ids = [theatre.queue.submit("sleep 0.3", gpus=2) for _ in range(3)]
    theatre.queue.wait(*ids)
    history = Path(theatre.queue.places.history)
    theatre.queue.until(lambda: (history / "index.json").exists(), "the jobs are in the history", 120)
    rita = theatre.page("rita", Role.USER)
    theatre.open(rita, "/then")
    assert rita.locator("h1").inner_text()

    theatre.open(rita, "/what-if")
    rita.get_by_label("From: a date, or 7d or 12h ago").fill("1d")
    rita.get_by_label("Machine: nodes × GPUs, such as 4x8:A100-80").fill("1x8:A100-80")
    rita.get_by_role("button", name="Replay").click()
    rita.wait_for_url("**/what-if/*")
    rita.get_by_role("heading", name="The command that does the same").wait_for()
    rita.get_by_role("row", name="What really happened").wait_for()
    rita.locator("#pictures[data-drawn]").wait_for()
    answer = rita.locator("h1").inner_text()
    assert "on average" in answer

    colleague = theatre.page("carl", Role.VIEWER)
    colleague.goto(rita.url)
    assert colleague.locator("h1").inner_text() == answer
    assert colleague.get_by_role("button", name="Delete").count() == 0
    command = colleague.locator("pre").inner_text()
    assert command.startswith("berth compare --from-history")
    assert "--cluster 1x8:A100-80" in command
