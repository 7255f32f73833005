"""Pages of the maintainers' tools, made from their CSV files; not part of the package."""
