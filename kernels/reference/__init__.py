"""reference: every op in NumPy, slow and plain, the measure of all other kernels."""
