"""Reading and writing at indices; sorting and searching."""
