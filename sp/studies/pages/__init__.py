"""Reports: pages of tables and pictures."""
