"""Waiting times: predicted from the history, and judged in the order of time."""

from berth.waiting.model import Answer, Evaluation, Judgement, Questions, WaitModel, evaluate, judge, train
