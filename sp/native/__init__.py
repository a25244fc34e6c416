"""Loops for the CPU at hand: written as LLVM's instructions, compiled in memory by llvmlite, run without the lock.

What NumPy has no name for: a product of few tokens with weights as their file packs them, which are unpacked in
registers, and attention over packed pages. Everything else is NumPy's, and NumPy's decoders are what these are held to.
"""
