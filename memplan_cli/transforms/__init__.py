"""Program -> Program: rewrites that need less memory for the same results."""
