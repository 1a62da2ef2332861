"""Storage for large graphs: tables by column, text on disk, memory given back to the system."""
