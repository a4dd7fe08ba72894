"""Guesses of the tokens that follow in a text, which one step of the model checks together.

A guess never changes a text: the sampler of the text goes over the rows of logits in order, and the
first token that differs from its guess ends the round. `speculation.py` decides how many to guess.
"""
