"""Frames that nobody wrote with a model, or with what it was trained on, in view.

They were written from the one-line descriptions of the tasks in `docs/evaluation.md` alone, by someone who had read
neither the training grammar nor the phrases of the tasks (`SESSION_*` and what `NOLIMA_*` say of tools, dishes and
firms: who had read the held-out frames, and not the grammar). Slots were fitted to the tasks; no word was changed after
a model had read one. Frames that the training phrases turned out to have as well were dropped, by a test and not by
sight. Words, names and layouts of documents are those of the held-out set, in `json` of the fresh one.
"""

from __future__ import annotations

from sp.evals.text.tables import table

TABLES = table(__file__)

NOLIMA_FACTS = TABLES["nolima_facts"]
NOLIMA_QUESTIONS = TABLES["nolima_questions"]

UPDATES_STATED = TABLES["updates_stated"]
UPDATES_QUESTIONS = TABLES["updates_questions"]

CODE_CONSTANTS = TABLES["code_constants"]
CODE_QUESTIONS = TABLES["code_questions"]

SESSION_LINKS = TABLES["session_links"]
SESSION_FACTS = TABLES["session_facts"]
SESSION_QUESTIONS = TABLES["session_questions"]

JSON_QUESTIONS = TABLES["json_questions"]
