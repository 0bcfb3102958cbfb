"""The live figure: `AttentionLab`, the same in Jupyter, on Binder and on the static page.

The engine (`engine.js`) integrates in the reader's browser and is tested against attnlib case by
case; the view (`view.js`) draws and listens. No kernel is needed, and no other site.
"""

from __future__ import annotations

import base64
import json
import re
import warnings
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import numpy as np
import traitlets
from numpy.typing import ArrayLike

from attnlib._check import as_count, as_matrix, as_square, as_tokens

from .presets import PRESETS, box, tokens_of

__all__ = ["PRESETS", "AttentionLab"]

VIEWS = ("space", "time", "verdict", "attention", "spectrum")

#: What a link to a state holds, as in view.js.
_LINKED = [
    "preset",
    "tokens",
    "V",
    "Q",
    "K",
    "seed",
    "half_width",
    "original",
    "discrete",
    "step",
    "t",
]

_HERE = Path(__file__).parent


def _module() -> str:
    """Engine and view as one ES module, without their comments."""
    engine = re.sub(r"^export (?=function|class|const)", "", _code("engine.js"), flags=re.M)
    view = re.sub(r"^import .*\n", "", _code("view.js"), flags=re.M)
    exported = ("makeSystem", "classify", "solver", "solve", "layers", "hull", "spectrum")
    names = ", ".join([*exported, "withEigenvalue", "describe"])
    # A function's own scope: names of the two files do not meet.
    return f"const E = (() => {{\n{engine}\nreturn {{ {names} }};\n}})();\n{view}"


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _code(name: str) -> str:
    """A script without the comments that stand on lines of their own."""
    return re.sub(r"^\s*(?:/\*.*?\*/|//[^\n]*)\n", "", _read(name), flags=re.M | re.S)


def _is_original(coordinates: str) -> bool:
    if coordinates not in ("rescaled", "original"):
        raise ValueError(f"coordinates must be 'rescaled' or 'original': got {coordinates!r}.")
    return coordinates == "original"


class AttentionLab(anywidget.AnyWidget):
    """Tokens under self-attention, to be moved by hand: all of its state is traits.

    Parameters
    ----------
    preset : str
        A name in `PRESETS`: weights, tokens and coordinates for a theorem.
    tokens : (n, d) array, optional
        Initial tokens, d = 1, 2 or 3; by default those of the preset's seed.
    Q, K, V : arrays, optional
        Weights, equation (1.2); by default the preset's.
    n, seed : int
        How many tokens, and the seed that draws them.
    views : sequence of str
        Which of "space", "time", "verdict", "attention", "spectrum" to show.
    coordinates : str
        "rescaled" (z = e^{-tV} x) or "original" (trait `original`).
    discrete : bool
        Show the discrete Transformer, with layers of length `step`, instead of the flow.
    t : float
        Depth shown, at least 0.
    label : str
        What the figure shows, for assistive technology and for the still picture.

    Traits that the figure sets: `tokens`, `V`, `t`, and `state`, a dict with the theorem that applies,
    the leaders, and whether they are certified.

    Examples
    --------
    >>> lab = AttentionLab(preset="Vertices (3.1)", n=8)
    >>> len(lab.tokens)
    8
    """

    _esm = _module()
    _css = _read("view.css")

    preset = traitlets.Unicode("Vertices (3.1)").tag(sync=True)
    preset_index = traitlets.Int(0).tag(sync=True)  # what a dropdown can be joined to
    presets = traitlets.Dict(PRESETS).tag(sync=True)
    preset_names: Any = traitlets.List(list(PRESETS)).tag(
        sync=True
    )  # a saved notebook sorts a dict
    tokens: Any = traitlets.Any([]).tag(sync=True)
    Q: Any = traitlets.Any([]).tag(sync=True)
    K: Any = traitlets.Any([]).tag(sync=True)
    V: Any = traitlets.Any([]).tag(sync=True)
    n = traitlets.Int(20).tag(sync=True)
    seed = traitlets.Int(1).tag(sync=True)
    half_width = traitlets.Float(2.0).tag(sync=True)
    t = traitlets.Float(0.0).tag(sync=True)
    original = traitlets.Bool(False).tag(sync=True)
    discrete = traitlets.Bool(False).tag(sync=True)
    step = traitlets.Float(0.1).tag(sync=True)
    trails = traitlets.Bool(True).tag(sync=True)
    show_hull = traitlets.Bool(True).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    views: Any = traitlets.List(list(VIEWS)).tag(sync=True)
    label = traitlets.Unicode("Tokens under self-attention").tag(sync=True)
    state = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        preset: str = "Vertices (3.1)",
        *,
        tokens: ArrayLike | None = None,
        Q: ArrayLike | None = None,
        K: ArrayLike | None = None,
        V: ArrayLike | None = None,
        n: int | None = None,
        seed: int | None = None,
        views: Any = VIEWS,
        coordinates: str | None = None,
        **traits: Any,
    ) -> None:
        if preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}: got {preset!r}.")
        base = PRESETS[preset] or PRESETS["Vertices (3.1)"]
        own = any(value is not None for value in (Q, K, V))
        v = as_square("V", base["V"] if V is None else V)
        if len(v) > 3:
            raise ValueError(f"V must be at most 3 x 3 to be shown: got shape {v.shape}.")
        eye = np.eye(len(v)) if own else None
        q = as_matrix("Q", Q if Q is not None else base["Q"] if eye is None else eye)
        k = as_matrix("K", K if K is not None else base["K"] if eye is None else eye)
        if q.shape != k.shape or q.shape[1] != len(v):
            raise ValueError(
                f"Q and K must have the same shape (k, {len(v)}): got {q.shape} and {k.shape}."
            )
        n = None if n is None else as_count("n", n, at_least=1)
        seed = None if seed is None else as_count("seed", seed)
        if tokens is None:
            begin = tokens_of({**base, "V": v.tolist()}, n, seed)
        else:
            begin = as_tokens(tokens, len(v)).tolist()
        views = list(views)
        unknown = [name for name in views if name not in VIEWS]
        if unknown or "space" not in views:
            raise ValueError(
                f"views must hold 'space' and any of {', '.join(VIEWS[1:])}: got {views!r}."
            )
        settings = {
            "original": _is_original(coordinates or base.get("coordinates", "rescaled")),
            "half_width": base["half_width"],
            "seed": base["seed"] if seed is None else seed,
            **traits,
        }
        unknown = [name for name in settings if name not in self.trait_names()]
        if unknown:
            raise TypeError(f"AttentionLab has no trait {unknown[0]!r}.")
        self._following = False
        super().__init__(
            preset="Custom" if own or tokens is not None else preset,
            tokens=begin,
            Q=q.tolist(),
            K=k.tolist(),
            V=v.tolist(),
            n=len(begin),
            views=views,
            **settings,
        )
        self._following = True

    @property
    def coordinates(self) -> str:
        """ "rescaled" or "original"."""
        return "original" if self.original else "rescaled"

    @coordinates.setter
    def coordinates(self, value: str) -> None:
        self.original = _is_original(value)

    @traitlets.observe("preset")
    def _follow_preset(self, change: Any) -> None:
        self.preset_index = list(PRESETS).index(change["new"])
        base = PRESETS[change["new"]]
        if not base or not self._set_here("preset"):
            return
        self._following = False
        begin = tokens_of(base)
        with self.hold_sync():
            self.Q, self.K, self.V, self.tokens = base["Q"], base["K"], base["V"], begin
            self.n, self.seed, self.half_width = len(begin), base["seed"], base["half_width"]
            self.coordinates = base.get("coordinates", "rescaled")
            self.discrete, self.t = False, 0.0
        self._following = True

    @traitlets.observe("n", "seed")
    def _draw_tokens(self, change: Any) -> None:
        if self._set_here(change["name"]):
            self.tokens = box(self.n, len(self.V), self.half_width, self.seed)

    @traitlets.observe("tokens")
    def _count_tokens(self, change: Any) -> None:
        if self._set_here("tokens"):
            self._following = False
            self.n = len(change["new"])
            self._following = True

    def _set_here(self, name: str) -> bool:
        """Whether Python set the trait, after construction: the view sends what follows itself."""
        return self._following and name not in self._property_lock

    @traitlets.validate("preset")
    def _check_preset(self, proposal: Any) -> str:
        if proposal["value"] not in PRESETS:
            raise ValueError(
                f"preset must be one of {', '.join(PRESETS)}: got {proposal['value']!r}."
            )
        return proposal["value"]

    @traitlets.validate("tokens")
    def _check_tokens(self, proposal: Any) -> list[list[float]]:
        tokens = as_tokens(proposal["value"])
        if self._following and tokens.shape[1] != len(self.V):
            raise ValueError(
                f"tokens must have {len(self.V)} columns, as V has (set V, Q and K first): "
                f"got shape {tokens.shape}."
            )
        return tokens.tolist()

    @traitlets.validate("Q", "K", "V")
    def _check_weights(self, proposal: Any) -> list[list[float]]:
        name = proposal["trait"].name
        matrix = (as_square if name == "V" else as_matrix)(name, proposal["value"])
        if matrix.shape[1] > 3:
            raise ValueError(f"{name} must have at most 3 columns: got shape {matrix.shape}.")
        return matrix.tolist()

    @traitlets.validate("n", "seed")
    def _check_counts(self, proposal: Any) -> int:
        name = proposal["trait"].name
        return as_count(name, proposal["value"], at_least=int(name == "n"))

    @traitlets.validate("step", "half_width")
    def _check_lengths(self, proposal: Any) -> float:
        if not 0.0 < proposal["value"] < np.inf:
            name = proposal["trait"].name
            raise ValueError(f"{name} must be positive: got {proposal['value']}.")
        return proposal["value"]

    @traitlets.validate("t")
    def _check_depth(self, proposal: Any) -> float:
        if not 0.0 <= proposal["value"] < np.inf:
            raise ValueError(f"t must be finite and at least 0: got {proposal['value']}.")
        return proposal["value"]

    @property
    def panel(self) -> ipywidgets.VBox:
        """The figure below its controls, joined so that they work without a kernel."""
        wide = {"description_width": "7em"}
        controls = [
            (
                ipywidgets.Dropdown(
                    options=list(PRESETS), value=self.preset, description="setting", style=wide
                ),
                "preset_index",
            ),
            (
                ipywidgets.IntSlider(
                    self.n,
                    1,
                    max(200, self.n),
                    description="tokens n",
                    continuous_update=True,
                    style=wide,
                ),
                "n",
            ),
            (
                ipywidgets.IntSlider(
                    self.seed, 0, max(99, self.seed), description="seed", style=wide
                ),
                "seed",
            ),
            (
                ipywidgets.Checkbox(
                    self.original, description="original coordinates", indent=False
                ),
                "original",
            ),
            (
                ipywidgets.Checkbox(self.discrete, description="discrete layers", indent=False),
                "discrete",
            ),
            (
                ipywidgets.FloatSlider(
                    self.step, min=0.01, max=1.0, step=0.01, description="layer length", style=wide
                ),
                "step",
            ),
        ]
        for widget, name in controls:
            widget.layout.width = "auto"
            value = "index" if isinstance(widget, ipywidgets.Dropdown) else "value"
            ipywidgets.jslink((widget, value), (self, name))
        boxes = []
        for kind in (False, True):
            members = [w for w, _ in controls if isinstance(w, ipywidgets.Checkbox) is kind]
            least = "11em" if kind else "17em"
            grid = f"repeat(auto-fit, minmax(min({least}, 100%), 1fr))"
            layout = ipywidgets.Layout(
                display="grid", grid_template_columns=grid, padding="0 0 4px"
            )
            boxes.append(ipywidgets.Box(members, layout=layout))
        return ipywidgets.VBox([*boxes, self])

    def link(self, which: int = 0) -> str:
        """The end of an address that puts figure number `which` of a page into this state.

        The same as the figure's button Link gives: `<a href="...">` with it is all it takes.

        Parameters
        ----------
        which : int
            Number of the figure on its page, from 0.

        Returns
        -------
        str
            "#lab=...", tokens to eight digits.
        """
        which = as_count("which", which)
        state = {name: getattr(self, name) for name in _LINKED}
        state["tokens"] = [[float(f"{v:.8g}") for v in row] for row in self.tokens]
        code = base64.urlsafe_b64encode(json.dumps(state, separators=(",", ":")).encode())
        return f"#lab={which}.{code.decode().rstrip('=')}"

    def still(self) -> Any:
        """The figure's state drawn by matplotlib, for readers without JavaScript: an Axes."""
        from attnlib import PrecisionWarning, SelfAttention, integrate, limit, plotting

        system = SelfAttention(self.Q, self.K, self.V)
        found = limit(system, self.tokens)
        end = min(max(found.time, 1.0), 8.0) if found.certified else 2.0
        if (
            found.certified
            and np.abs(found.rescaled_at(end)).max() > 20 * np.abs(self.tokens).max()
        ):
            end = 2.0
        with warnings.catch_warnings():  # a run that ends early is a picture all the same
            warnings.simplefilter("ignore", PrecisionWarning)
            ax = plotting.paths(integrate(system, self.tokens, end))
        return plotting.limits(found, ax) if len(found.leaders) else ax

    def show(self, *, moving: bool = False) -> ipywidgets.VBox:
        """Draw the still, which holds the place, and return the figure with its controls.

        With `moving` the still is `attnlib.plotting.moving`, which needs no script either (d = 2).
        """
        import matplotlib.pyplot as plt
        from IPython.display import HTML, display

        from attnlib import SelfAttention, integrate, plotting

        if moving:
            path = integrate(SelfAttention(self.Q, self.K, self.V), self.tokens, 5.0)
            svg = plotting.moving(path, label=self.label)
            picture: Any = HTML(f'<div class="still-figure">{svg}</div>')  # type: ignore[no-untyped-call]
            display(picture)  # type: ignore[no-untyped-call]
        else:
            self.still()
            plt.show()
        return self.panel
