"""Evaluation of selections: tasks that make prompts with known answers, and the scoring of answers.

Importing this package registers every task of `sp.evals.tasks`, and every format of files of `sp.evals.formats`.
"""

from sp.config import import_modules
from sp.evals.base import TASKS, Example, Task, register_task
from sp.evals.run import FULL, Row, evaluate

__all__ = ["FULL", "TASKS", "Example", "Row", "Task", "evaluate", "register_task"]

import_modules("sp.evals.tasks")
import_modules("sp.evals.transcripts")
import_modules("sp.evals.formats")
import_modules("sp.evals.natural")
