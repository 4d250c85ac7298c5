"""The runner of a check: two sides, interleaved until the rules of ``dlprof.gate`` decide."""
