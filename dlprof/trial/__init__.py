"""What happens in one configuration.

Three processes take part. The *supervisor* (the program's own process, no torch) starts and judges
each trial. The *fork server* has torch imported and the target built, and forks one *child* per
trial, which runs the loader and the clock. The *observer* samples the child's process tree.
"""
