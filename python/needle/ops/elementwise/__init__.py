"""Functions of each element: arithmetic, comparisons, logic, activations."""
