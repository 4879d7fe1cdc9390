"""Waiting times: predicted from the history, and judged in the order of time."""

from berth.waiting.model import Answer, Evaluation, Questions, WaitModel, doubts_of, evaluate, train

__all__ = ["Answer", "Evaluation", "Questions", "WaitModel", "doubts_of", "evaluate", "train"]
