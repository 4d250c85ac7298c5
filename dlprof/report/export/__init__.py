"""A run as a file for other programs: HTML, Markdown, CSV, JSON, a trace for Perfetto."""
