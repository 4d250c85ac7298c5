"""dlprof inside other people's programs: their own loops, and whole training scripts."""
