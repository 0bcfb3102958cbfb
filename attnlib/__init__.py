"""attnlib: attention dynamics, the regimes theory knows, and the limits tokens reach.

The mathematics of "The emergence of clusters in self-attention dynamics" (arXiv 2305.05465).
Names are loaded when first used, so that `import attnlib` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import tokens
    from .dynamics import Dynamics, SelfAttention
    from .feedforward import FeedForward
    from .integration import PrecisionWarning, Trajectory, integrate, layers
    from .limits import Limit, limit
    from .regimes import Regime, classify
    from .shapes import Shape, shape_of
    from .spectrum import LowRank
    from .sweeps import Sweep, sweep

_HOMES = {
    "Dynamics": "dynamics",
    "SelfAttention": "dynamics",
    "FeedForward": "feedforward",
    "PrecisionWarning": "integration",
    "Trajectory": "integration",
    "integrate": "integration",
    "layers": "integration",
    "Limit": "limits",
    "LowRank": "spectrum",
    "Regime": "regimes",
    "classify": "regimes",
    "limit": "limits",
    "Shape": "shapes",
    "shape_of": "shapes",
    "Sweep": "sweeps",
    "sweep": "sweeps",
}

_MODULES = ("attention", "plotting", "symbolic", "tokens")

__all__ = [
    "Dynamics",
    "FeedForward",
    "Limit",
    "LowRank",
    "PrecisionWarning",
    "Regime",
    "SelfAttention",
    "Shape",
    "Sweep",
    "Trajectory",
    "classify",
    "integrate",
    "layers",
    "limit",
    "shape_of",
    "sweep",
    "tokens",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
