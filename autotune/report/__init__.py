"""What a study found, for people and for programs."""
