"""A check's verdict, as each place that shows verdicts wants it. Renderers judge nothing."""
