"""Everything a user may set, from files and options, read by one table of keys."""
