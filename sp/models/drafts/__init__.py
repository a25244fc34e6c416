"""DFlash drafts, which guess ahead for a target of their own."""
