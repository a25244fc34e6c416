"""How the questions of `sp.evals.transcripts` are answered, turn by turn: rows, and what they come to."""
