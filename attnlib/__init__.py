"""attnlib: attention dynamics, the regimes theory knows, and the limits tokens reach.

The mathematics of "The emergence of clusters in self-attention dynamics" (arXiv 2305.05465).
"""

from . import tokens
from .dynamics import Dynamics, SelfAttention
from .integration import PrecisionWarning, Trajectory, integrate, layers

__all__ = [
    "Dynamics",
    "PrecisionWarning",
    "SelfAttention",
    "Trajectory",
    "integrate",
    "layers",
    "tokens",
]

__version__ = "0.1.0"
