from berth import plots
from berth.plots.style import OF_POLICY
from berth.policies import names


def test_a_policy_has_its_colour_on_every_page() -> None:
    seven = ["round-robin", "first-fit", "tetris", "best-fit", "fgd", "genetic-paper", "genetic"]
    styles = plots.policy_styles(seven)
    assert len({style.colour for style in styles.values()}) == 7
    for some in (["genetic"], ["fgd", "genetic"], seven[::-1], ["easy+fgd", "my:thing", *seven[3:]]):
        assert all(plots.policy_styles(some)[name] == styles[name] for name in some if name in styles)
    alone = plots.policy_styles(["genetic?budget_ms=50", "fgd"])
    assert alone["genetic?budget_ms=50"] == styles["genetic"]
    beside = plots.policy_styles(["genetic?budget_ms=50", "genetic"])
    assert beside["genetic"] == styles["genetic"]
    assert beside["genetic?budget_ms=50"] != styles["genetic"]
    assert (
        len({style.colour for style in plots.policy_styles(["fifo", "first-fit", "learned"]).values()}) == 3
    )


def test_every_policy_of_the_registry_has_a_colour_of_its_name() -> None:
    assert set(OF_POLICY) <= set(names())
    missing = set(names()) - set(OF_POLICY)
    assert missing <= {"headroom", "limits", "passing", "preempt"}  # never alone


def test_many_policies_are_told_apart_by_colour_and_dash() -> None:
    names = [f"policy-{at}" for at in range(20)]
    assert len(set(plots.policy_styles(names).values())) == 20
