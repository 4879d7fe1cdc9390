"""Linear and mixed-integer models, handed to HiGHS (the extra `optimum`).

Huangfu and Hall, "Parallelizing the dual revised simplex method", Mathematical Programming Computation 10, 2018.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.errors import MissingExtraError

Floats = NDArray[np.float64]


def check_solver() -> None:
    """MissingExtraError where the extra `optimum` is not there."""
    Maximum()


class Maximum:
    """A model for HiGHS, collected and then handed over at once. Everything is maximised."""

    def __init__(self) -> None:
        try:
            import highspy
        except ImportError as error:
            raise MissingExtraError("module 'highspy'", "optimum", "berth-papers") from error
        self.highspy = highspy
        self.upper: list[float] = []
        self.worth: list[float] = []
        self.rows: list[tuple[list[tuple[int, float]], float, float]] = []

    def variable(self, upper: float, worth: float) -> int:
        """A variable from 0 to `upper`."""
        self.upper.append(float(upper))
        self.worth.append(worth)
        return len(self.upper) - 1

    def row(self, entries: list[tuple[int, float]], *, lower: float = -np.inf, upper: float = np.inf) -> None:
        """A sum that stays between two numbers; one of nothing is left out."""
        if entries:
            self.rows.append((entries, lower, upper))

    def solve(self, time_limit_s: float, threads: int, *, integer: bool) -> tuple[Floats, float]:
        """The values of the variables, and what the objective cannot exceed."""
        count = len(self.upper)
        if not count:
            return np.zeros(0), 0.0
        made: Any = self.highspy.Highs
        solver = made()
        infinite = self.highspy.kHighsInf
        for name, value in (
            ("output_flag", False),
            ("time_limit", float(time_limit_s)),
            ("threads", threads),
            ("random_seed", 0),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.5),
        ):
            solver.setOptionValue(name, value)
        model: Any = self.highspy.HighsLp()
        model.num_col_ = count
        model.num_row_ = len(self.rows)
        model.col_cost_ = np.array(self.worth)
        model.col_lower_ = np.zeros(count)
        model.col_upper_ = np.array(self.upper)
        model.row_lower_ = np.array([-infinite if lower == -np.inf else lower for _, lower, _ in self.rows])
        model.row_upper_ = np.array([infinite if upper == np.inf else upper for _, _, upper in self.rows])
        model.sense_ = self.highspy.ObjSense.kMaximize
        lengths = [len(entries) for entries, _, _ in self.rows]
        model.a_matrix_.format_ = self.highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        model.a_matrix_.index_ = np.array(
            [v for entries, _, _ in self.rows for v, _ in entries], dtype=np.int32
        )
        model.a_matrix_.value_ = np.array([w for entries, _, _ in self.rows for _, w in entries])
        if integer:
            model.integrality_ = [self.highspy.HighsVarType.kInteger] * count
        solver.passModel(model)
        solver.run()
        info = solver.getInfo()
        values = np.array(solver.getSolution().col_value)
        if not len(values):
            values = np.zeros(count)
        bound = info.mip_dual_bound if integer else info.objective_function_value
        return values, float(bound)
