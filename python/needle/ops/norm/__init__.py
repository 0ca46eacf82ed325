"""Normalisation by layers, batches and groups."""
