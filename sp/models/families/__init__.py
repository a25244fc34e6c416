"""Families of models: one file a family, all of them registered when this package is imported."""

from sp.config import import_modules

import_modules(__name__)
