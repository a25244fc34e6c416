"""What there is to choose from: strategies, tasks, families of models, and the keys of sweeps."""
