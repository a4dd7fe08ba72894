"""model: GGUF files, weights, architectures, the KV pool, decoding, vocabulary, sampling."""
