"""Tests of what a selection keeps: tasks that make prompts with known answers, and how answers are judged."""

from sp.evals import needle
from sp.evals.base import TASKS, Example, Task
from sp.evals.run import evaluate

__all__ = ["TASKS", "Example", "Task", "evaluate", "needle"]
