"""``needle.compile``: a function of tensors, traced once and run as one program."""
