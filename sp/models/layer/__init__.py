"""The layers that blocks are made of."""
