"""Products, equations and factorizations of matrices."""
