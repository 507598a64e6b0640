"""rn50: the import package. Every room below is a symlink to the top-level folder of that name."""

import sys

from .train.mxnet_import import MXNetFinder

__version__ = "1.0.0"

sys.meta_path.insert(0, MXNetFinder())
