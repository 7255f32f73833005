"""Pages that only maintainers make: the traps and the matrix of strategies. Not part of the package."""
