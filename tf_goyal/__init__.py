"""Large-minibatch synchronous SGD after Goyal et al. 2017 (arXiv 1706.02677)."""

__version__ = "0.1.0"
