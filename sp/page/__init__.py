"""Pages of one file that need nothing else: markup that escapes, a frame for light, dark and narrow screens, heat."""
