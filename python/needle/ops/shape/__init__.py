"""New tensors, and ops that move elements: shapes, axes, padding, joining and splitting."""
