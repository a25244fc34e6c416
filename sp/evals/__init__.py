"""Tests of what a selection keeps: tasks that make prompts with known answers, and how answers are judged.

Import this package to have every task registered.
"""

from sp.evals.base import TASKS, Example, Task, register_task
from sp.evals.run import FULL, Row, evaluate
from sp.evals.tasks import needle, ruler, ruler_counting, ruler_file, ruler_qa, ruler_tracking

__all__ = [
    "FULL",
    "TASKS",
    "Example",
    "Row",
    "Task",
    "evaluate",
    "needle",
    "register_task",
    "ruler",
    "ruler_counting",
    "ruler_file",
    "ruler_qa",
    "ruler_tracking",
]
