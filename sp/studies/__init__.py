"""Studies of runs: sweeps and their result files, the leaderboard, and reports with tables and figures."""
