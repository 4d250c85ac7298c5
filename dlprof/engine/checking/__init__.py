"""The sides of a check: where the code of each lies, how they run, what a history keeps of them."""
