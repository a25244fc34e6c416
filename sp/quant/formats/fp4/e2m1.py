"""E2M1: the sixteen numbers of four bits, one sign, two of exponent and one of mantissa.

Source: OCP Microscaling Formats (MX) Specification 1.0, section 5.3.3. They are doubled here, so that all are whole, as
in ggml, and the scales that multiply them are halved."""

from __future__ import annotations

import numpy as np

from sp.quant.formats.codes import nibble_tables

E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What the codes stand for, doubled; minus zero is zero."""
E2M1_LOW, E2M1_HIGH = nibble_tables(E2M1_VALUES)
E2M1_RMS = float(np.sqrt(np.mean(np.square(E2M1_VALUES))))
