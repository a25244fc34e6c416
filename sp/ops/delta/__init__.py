"""Gated DeltaNet: convolution, recurrence in chunks and over trees, gated norm."""
