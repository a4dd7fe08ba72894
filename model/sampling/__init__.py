"""sampling: from logits to the next token."""
