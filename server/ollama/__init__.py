"""Ollama's API: its chats, completions, lists of models, embeddings and downloads.

Requests are translated to the forms that all APIs share, and replies to ollama's: JSON objects, one
per line in a stream.
"""
