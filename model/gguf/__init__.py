"""gguf: reading GGUF files, bounded and lazy."""
