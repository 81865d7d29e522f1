"""Training engines, one file each."""
