"""How many decode steps run before the host looks at their tokens.

Looking costs the host about the same after one step as after several: scheduling, sending rows, text.  What waits
meanwhile is a stop, a cancellation or a new request, so a turn is bounded by time.
"""

from __future__ import annotations

from tandem.engine.plan import StepPlan

MOST = 8  # steps of a turn: what the host does for one is a small part of it then


class Turns:
    """Chooses by what the last decode steps took.

    Args:
        seconds: longest turn; 0 for single steps.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._steps = 1

    @property
    def steps(self) -> int:
        """Most steps of the next turn."""
        return self._steps

    def note(self, plan: StepPlan, seconds: float) -> None:
        """Learn from a plan that ran and was delivered in ``seconds``."""
        decodes = int(plan.num_rows.max()) == 1
        self._steps = max(1, min(MOST, int(self._seconds * plan.steps / max(seconds, 1e-9)))) if decodes else 1
