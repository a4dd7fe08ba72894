"""kernels: block formats, backends and their kernels. Knows nothing of models or requests."""
