"""How the tokens of an answer are chosen, and what is told of them: sampling, formats, log probabilities."""
