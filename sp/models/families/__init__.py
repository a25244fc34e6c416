"""Model families: one file per family, all registered when this package is imported."""

from sp.config import import_modules

import_modules(__name__)
