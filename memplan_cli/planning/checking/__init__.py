"""Plan files as untrusted input: types, ranges, overlaps and every number recomputed."""
