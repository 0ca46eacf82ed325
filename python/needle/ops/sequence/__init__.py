"""Recurrent layers, attention and positions."""
