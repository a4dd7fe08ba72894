"""simd: the vector instructions that kernels are written in, for any processor."""
