"""The site: `sphinx-build -W -b html docs build`, with the extra `docs`."""

import sys
from pathlib import Path

import sp

sys.path.append(str(Path(__file__).parent / "_site"))

project = "sp"
author = copyright = "The sp authors"
version = release = sp.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "links", "reference"]
templates_path = ["_site/templates"]
exclude_patterns = ["_site", "_build"]
myst_heading_anchors = 3
autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections say them
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
default_role = "literal"  # a single backtick is code in docstrings
html_theme = "furo"
html_title = "sp"
