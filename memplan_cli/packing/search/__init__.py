"""Exact search for a layout of a given height: branch and bound over skylines."""
