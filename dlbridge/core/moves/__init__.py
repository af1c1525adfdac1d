"""From one memory to another: the plan, its steps, the copies."""
