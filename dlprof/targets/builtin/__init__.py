"""The built-in workloads: real work on real files, made once under the user's cache directory."""
