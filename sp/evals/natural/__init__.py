"""Questions by hand about real documents: where they come from, and whether a selection keeps their evidence whole."""
