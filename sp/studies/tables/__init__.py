"""Tables of measurements."""
