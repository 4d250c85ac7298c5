"""How the device is reached: events, streams, page-locked memory, and batches moved to it."""
