"""`sp chat`: a conversation in the terminal."""
