"""Speculative prefill: which tokens of a long prompt must a heavy model really read?"""

__version__ = "0.1.0"
