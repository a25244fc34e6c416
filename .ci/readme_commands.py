"""Print the two commands of the README: the first line runs the main job, the second the tests."""

import re
from pathlib import Path

text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
commands = re.findall(r"^(python3 -m venv .*)$", text, flags=re.MULTILINE)
if len(commands) != 2:
    raise SystemExit(f"README.md must hold exactly two commands that begin with 'python3 -m venv', not {len(commands)}")
print("\n".join(commands))
