"""What `sp chat` is made of: a session, the lines that come in, commands with a slash, and Ctrl-C."""
