"""cpu: the CPU backend, kernels compiled by Numba and run by a pool of threads."""
