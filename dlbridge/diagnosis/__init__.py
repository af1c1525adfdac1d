"""What this machine has for dlbridge, and what is wrong with it: `info` and `doctor`."""
