"""A solver for CVXPY: ``problem.solve(solver=CvxpySolver())``.

CVXPY brings a problem with a quadratic objective and linear constraints into the form

    min ½xᵀPx + qᵀx  subject to  Ax = b,  Fx ≤ g,  lb ≤ x ≤ ub,

which is solved by `solve_problem`; large matrices stay sparse. Keep one object for problems that are
solved again with other parameters: it starts from the answer before where CVXPY asks for warm starts.
"""

from __future__ import annotations

from typing import Any

import cvxpy.settings as s
import numpy as np
from cvxpy.reductions.solution import Solution, failure_solution
from cvxpy.reductions.solvers import utilities
from cvxpy.reductions.solvers.qp_solvers.qp_solver import QpSolver

from time2decide.core.validation import validate_choice
from time2decide.qp.solution import Status
from time2decide.qpsolvers_api import Problem, ProblemError, ProblemSolution, solve_problem
from time2decide.solving import METHODS

_STATUS = {
    Status.OPTIMAL: s.OPTIMAL,
    Status.INFEASIBLE: s.INFEASIBLE,
    Status.NEARLY_INFEASIBLE: s.INFEASIBLE_INACCURATE,
    Status.UNBOUNDED: s.UNBOUNDED,
    Status.NOT_CONVERGED: s.SOLVER_ERROR,
}


class CvxpySolver(QpSolver):
    """Our exact solver for CVXPY, or another method of `solve`, whose options ``problem.solve`` takes (as ``tol``)."""

    MIP_CAPABLE = False
    REQUIRES_CONSTR = False
    BOUNDED_VARIABLES = True

    def __init__(self, method: str = "exact") -> None:
        validate_choice("method", method, METHODS)
        self.method = method

    def name(self) -> str:
        """The name that CVXPY reports."""
        return "TIME2DECIDE"

    def import_solver(self) -> None:
        """Nothing to load: this package is here."""

    def cite(self, data: Any) -> str:
        """No citation."""
        return ""

    def solve_via_data(
        self, data: Any, warm_start: bool, verbose: bool, solver_opts: dict[str, Any], solver_cache: Any = None
    ) -> tuple[str, ProblemSolution | None]:
        """The status and the solution of the problem that CVXPY hands over."""
        rows, equations = len(data[s.G]) > 0, len(data[s.B]) > 0
        problem = Problem(
            data[s.P],
            data[s.Q],
            data[s.F] if rows else None,
            data[s.G] if rows else None,
            data[s.A] if equations else None,
            data[s.B] if equations else None,
            data[s.LOWER_BOUNDS],
            data[s.UPPER_BOUNDS],
        )
        cache = {} if solver_cache is None else solver_cache
        start = cache.get(self.name()) if warm_start else None
        start = start if start is not None and start.shape == np.shape(data[s.Q]) else None
        try:
            found = solve_problem(problem, self.method, start, verbose, **solver_opts)
        except ProblemError as error:
            if "unbounded" not in str(error):
                raise
            return str(Status.UNBOUNDED), None
        if found.found:
            cache[self.name()] = found.x
        return found.extras["status"], found

    def invert(self, solution: tuple[str, ProblemSolution | None], inverse_data: Any) -> Any:
        """The solution in CVXPY's type."""
        status, found = _STATUS[Status(solution[0])], solution[1]
        if found is None or status not in s.SOLUTION_PRESENT:
            return failure_solution(status, {})
        duals: dict[Any, Any] = {}
        for values, constraints in ((found.y, self.EQ_CONSTR), (found.z, self.NEQ_CONSTR)):
            duals |= utilities.get_dual_values(values, utilities.extract_dual_value, inverse_data[constraints])
        value = (found.obj or 0.0) + inverse_data[s.OFFSET]
        attributes = {s.SOLVE_TIME: found.solve_time, s.SETUP_TIME: found.build_time}
        return Solution(status, value, {self.VAR_ID: found.x}, duals, attributes)
