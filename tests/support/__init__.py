"""What several test modules use: devices, foreign arrays, processes, faults that are put in."""
