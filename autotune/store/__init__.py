"""Trial folders and the tables that index them."""
