"""The dtype and shape of every tensor: declared, given, inferred, or derived from shape arithmetic."""
