"""CPU kernels written as LLVM IR and compiled in memory by llvmlite; they run without Python's lock.

They cover the operations that NumPy lacks: products of a few tokens with packed weights, which are unpacked in
registers, and attention over packed pages. All else is left to NumPy, whose decoders are the reference for these."""
