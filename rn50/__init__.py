"""rn50: the import package. Every room below is a symlink to the top-level folder of that name."""

__version__ = "0.1.0"
