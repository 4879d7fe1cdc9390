"""Python's collector is held for a while and goes on afterwards as it was."""

from __future__ import annotations

import gc

from berth.experiments.compare.sweep import held_collector


def test_the_collector_is_as_it_was_before() -> None:
    assert gc.isenabled()
    with held_collector():
        assert not gc.isenabled()
        with held_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_what_somebody_else_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with held_collector():
            pass
        assert 0 < gc.get_freeze_count() <= before
    finally:
        gc.unfreeze()
