"""What a model remembers of the tokens it has read: pages, block tables, recurrent states."""
