"""What a pass takes on a card nobody measured: its work by kind of kernel, and how near to its limits each came."""
