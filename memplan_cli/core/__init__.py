"""What every room speaks of: programs, packing problems, sizes, plans and reports, as data."""
