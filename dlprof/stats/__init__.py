"""Small-sample statistics, pure and without numpy: torch does not depend on it."""
