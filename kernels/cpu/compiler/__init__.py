"""compiler: Numba and LLVM compile Python functions to machine code, which is cached on disk."""
