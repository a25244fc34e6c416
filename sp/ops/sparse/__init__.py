"""FlashPrefill: the selection of key blocks for each query block, and attention over these only."""
