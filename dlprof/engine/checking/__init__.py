"""The runner of a check: two sides, measured in turns until the rules of ``dlprof.gate`` decide."""
