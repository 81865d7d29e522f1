"""Ways to start a trial's processes, one file each."""
