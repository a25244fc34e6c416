"""Cases of `sp kernels bench`, one module a family; all of them are registered when this package is imported."""

from sp.config import import_modules

import_modules(__name__)
