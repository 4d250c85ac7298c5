"""How fast data reaches the device: runs in a process of its own, because it loads torch."""
