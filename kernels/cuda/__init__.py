"""cuda: NVIDIA GPUs. Kernels are CUDA C++ in `src/`, compiled for the device at first use."""
