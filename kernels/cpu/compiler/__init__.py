"""compiler: Python functions made into machine code by Numba and LLVM, kept on disk."""
