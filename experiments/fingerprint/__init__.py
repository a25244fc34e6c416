"""Cases of `experiments/fingerprints.py`: what is run, on inputs that are the same wherever it is run."""
