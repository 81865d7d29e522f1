"""Stand-in for flash-linear-attention."""
