"""Mixtures of experts: the routing of tokens to experts, and the experts' feed-forward."""
