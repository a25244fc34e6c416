"""What commands share: their options and help, what is read from and written to a terminal."""
