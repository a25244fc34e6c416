"""What stands between the socket and a request: bodies within limits, ids, and a line of log for each."""
