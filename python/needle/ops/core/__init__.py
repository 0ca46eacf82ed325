"""The ground of all ops: their base class, operands, attributes, docstrings, samples."""
