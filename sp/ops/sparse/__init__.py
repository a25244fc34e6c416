"""FlashPrefill: which key blocks each query block reads, and attention over those alone."""
