"""Statistics: pure functions of the standard library."""
