"""The model of waits that a history keeps, learned anew as the history grows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from berth.history.store.folder import open_history
from berth.waiting.model import Questions, WaitModel, judge, train
from berth.waiting.questions import categories_of, live_features

MODEL_NAME: Final = "waiting.json"


def history_questions(history: Path) -> Questions:
    """Every attempt of a history as a question asked at its submission."""
    with open_history(history, must_exist=True).database() as database:
        categories = categories_of(database)
        features, moments, waits, _ = live_features(database, (), 0, categories)
    names = tuple(sorted(features))
    return Questions(names, np.column_stack([features[name] for name in names]), moments, waits, categories)


def learn_anew(history: Path) -> tuple[WaitModel, int]:
    """Learn from all of a history, judge the model, and keep it there; returns it and from how many waits it learned.

    Raises SettingError for a history with too few waits.
    """
    questions = history_questions(history)
    model = train(questions)
    model.judgement = judge(questions)
    model.save(history / MODEL_NAME)
    return model, len(questions)
