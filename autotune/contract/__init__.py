"""What the coordinator and the training processes share. Standard library only."""
