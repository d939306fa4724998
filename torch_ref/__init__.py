"""The training of jaxtag as a PyTorch user writes it: the reference that jaxtag is held to.

It shares configuration, corpora and token ids with jaxtag, and nothing that computes. Batches are
padded to their longest sentence, so that equal results prove that static shapes change no number.
"""
