"""kernels: block formats and the backends with their kernels. Knows nothing of models or requests."""
