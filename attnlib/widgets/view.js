import * as E from "./engine.js";

/**
 * The view of the live figure: space, time, verdict, attention and spectrum of one state.
 * The state is the widget's traits (see `AttentionLab`); everything here is drawn from them.
 */

const LIGHT = {
  paper: "#fbfaf7", ink: "#26313d", faint: "#55606c", line: "#c9ced4", hull: "rgba(0,114,178,0.10)",
  edge: "#0072b2", token: "#26313d", leader: "#b34700", trail: "rgba(38,49,61,0.30)",
  future: "rgba(38,49,61,0.13)", start: "#6b7683", chosen: "#00775a", warm: [179, 71, 0], cool: [251, 250, 247],
};
const DARK = {
  paper: "#15191e", ink: "#e8ebee", faint: "#a3adb8", line: "#414a54", hull: "rgba(86,180,233,0.14)",
  edge: "#56b4e9", token: "#e8ebee", leader: "#f0a030", trail: "rgba(232,235,238,0.34)",
  future: "rgba(232,235,238,0.15)", start: "#a3adb8", chosen: "#3fd0a4", warm: [240, 160, 48], cool: [21, 25, 30],
};
const FAR = 1e6;
const SECONDS = 9; // to play from first to last
const LINKED = ["preset", "tokens", "V", "Q", "K", "seed", "half_width", "original", "discrete", "step", "t"];

const clamp = (v, low, high) => Math.min(high, Math.max(low, v));
const show = (v) => v === null || v === undefined ? "" : (Math.abs(v) >= 1e4 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(1) : String(Number(v.toPrecision(3))));

/** Tokens uniform in a box: mulberry32, as in `presets.py`. */
function box(n, d, half, seed) {
  let a = seed >>> 0;
  const uniform = () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return Array.from({ length: n }, () => Array.from({ length: d }, () => half * (2 * uniform() - 1)));
}

/** The traits that a link may set, each checked: a link is a stranger's. */
function fromLink(state, names) {
  const need = (holds, name) => {
    if (!holds) throw new RangeError(name);
  };
  const within = (v, low, high) => typeof v === "number" && v >= low && v <= high;
  const matrix = (m, rows, columns) => Array.isArray(m) && m.length >= 1 && m.length <= rows &&
    m.every((row) => Array.isArray(row) && row.length === columns && row.every(Number.isFinite));
  const { preset, tokens, V, Q, K, seed, half_width, original, discrete, step, t } = state, d = V.length;
  need(names.includes(preset), "preset");
  need(within(d, 1, 3) && matrix(V, 3, d), "V");
  need(matrix(tokens, 2000, d), "tokens");
  need(matrix(Q, 64, d) && matrix(K, 64, d) && Q.length === K.length, "Q, K");
  need(Number.isInteger(seed) && within(seed, 0, 2 ** 32), "seed");
  need(within(half_width, 1e-6, 1e6) && within(step, 1e-3, 10) && within(t, 0, 1e6), "half_width, step, t");
  need(typeof original === "boolean" && typeof discrete === "boolean", "original, discrete");
  const preset_index = names.indexOf(preset);
  return { preset, preset_index, tokens, n: tokens.length, V, Q, K, seed, half_width, original, discrete, step, t };
}

function isDark() {
  const page = document.documentElement.dataset.theme, lab = document.body.dataset.jpThemeLight;
  if (page === "dark" || page === "light") return page === "dark";
  if (lab) return lab === "false";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** A canvas that is crisp on every screen and knows its size in CSS pixels. */
class Sheet {
  constructor(attributes) {
    this.canvas = make("canvas", attributes);
    this.pen = this.canvas.getContext("2d");
  }

  begin(paper) {
    const { canvas, pen } = this, ratio = Math.min(devicePixelRatio || 1, 3);
    // Asked once, then told by an observer: asking in every frame would lay out the page each time.
    if (!this.w || !this.h) this.resize(canvas.clientWidth, canvas.clientHeight);
    const { w, h } = this;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(h * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = paper;
    pen.fillRect(0, 0, w, h);
    return pen;
  }

  resize(w, h) {
    this.w = w || 300;
    this.h = h || 300;
  }
}

class Lab {
  constructor(model, el) {
    this.model = model;
    this.root = el;
    this.off = [];
    this.active = true;
    this.visible = true;
    this.t = model.get("t");
    this.fresh = this.t === 0;
    this.span = 5;
    this.yaw = 0.6;
    this.pitch = 0.4;
    this.chosen = -1;
    this.hover = -1;
    this.eigen = 0;
    this.views = new Set(model.get("views"));
    this.slow = matchMedia("(prefers-reduced-motion: reduce)");
    this.build();
    this.listen();
    if (this.slow.matches && model.get("playing")) this.set({ playing: false });
    this.restore();
    this.read();
    this.compute("full");
  }

  /* ------------------------------------------------------------------------- the page ---- */

  build() {
    const { model } = this, label = model.get("label");
    this.id = `lab-${Math.random().toString(36).slice(2, 8)}`;
    this.space = new Sheet({
      class: "lab-space", tabindex: "0", role: "application", "aria-roledescription": "interactive figure",
      "aria-label": label, "aria-describedby": `${this.id}-say ${this.id}-keys`,
    });
    const main = make("div", { class: "lab-main" }, this.space.canvas);
    const side = make("div", { class: "lab-side" });
    if (this.views.has("attention")) {
      this.heat = new Sheet({ class: "lab-heat", role: "img", "aria-label": "Attention matrix" });
      side.append(make("figure", {}, make("figcaption", {}, "Attention P: rows look at columns, sorted by leader"), this.heat.canvas));
    }
    if (this.views.has("spectrum")) {
      this.plane = new Sheet({
        class: "lab-plane", tabindex: "0", role: "application", "aria-roledescription": "interactive figure",
        "aria-label": "Eigenvalues of V. Comma and full stop choose one, arrow keys move it.",
      });
      side.append(make("figure", {}, make("figcaption", {}, "Eigenvalues of V: drag one"), this.plane.canvas));
    }
    const button = (text, title, onclick) => make("button", { type: "button", title, onclick }, text);
    this.play = button("Play", "Play or pause", () => this.setPlaying(!this.model.get("playing")));
    this.slider = make("input", {
      type: "range", min: "0", max: "1000", step: "1", value: "0", "aria-label": "Depth t",
      oninput: () => this.setTime(this.depthAt(this.slider.valueAsNumber / 1000)),
    });
    this.clock = make("output", { class: "lab-clock" });
    const time = make(
      "div", { class: "lab-time", hidden: !this.views.has("time") }, this.play,
      button("Step", "One step forward in depth", () => this.setTime(this.depthAt(clamp(this.place() + 0.01, 0, 1)))),
      this.slider, this.clock,
    );
    const tools = make(
      "div", { class: "lab-tools" },
      button("Reset", "Back to the setting's own tokens and weights", () => this.reset()),
      button("New seed", "Draw other tokens", () => this.set({ seed: (this.model.get("seed") + 1) % 100 })),
      button("Add token", "Add a token (key +)", () => this.add()),
      button("Remove token", "Remove the chosen token (key Delete)", () => this.remove()),
      button("Link", "Copy a link to this state", () => this.link()),
      button("PNG", "Save the picture", () => this.savePNG()),
      button("CSV", "Save the tokens at this depth", () => this.saveCSV()),
    );
    this.verdict = make("div", { class: "lab-verdict", hidden: !this.views.has("verdict") });
    // What the verdict shows is spoken; without it the same sentence is shown.
    const said = this.views.has("verdict") ? "lab-say lab-hidden" : "lab-say";
    this.say = make("p", { class: said, id: `${this.id}-say`, "aria-live": "polite" });
    this.note = make("p", { class: "lab-note", role: "status" });
    const keys = make(
      "details", { class: "lab-keys" }, make("summary", {}, "Keys and gestures"),
      make("p", { id: `${this.id}-keys` },
        "Drag a token, or choose one with comma and full stop and move it with the arrow keys (Shift: farther). " +
        "Plus adds a token, Delete removes the chosen one, Escape lets go. In space, drag beside the tokens or use the arrow " +
        "keys to turn. Space bar plays, Home goes to depth 0, End to the last depth."),
    );
    this.body = make("div", { class: "lab", role: "group", "aria-label": label },
      make("div", { class: side.children.length ? "lab-grid" : "lab-grid lab-alone" }, main, side), time, this.verdict, this.say, tools, this.note, keys);
    this.root.append(this.body);
  }

  listen() {
    const on = (target, event, call, options) => {
      target.addEventListener(event, call, options);
      this.off.push(() => target.removeEventListener(event, call, options));
    };
    const watch = (names, call) => {
      for (const name of names) {
        this.model.on(`change:${name}`, call);
        this.off.push(() => this.model.off(`change:${name}`, call));
      }
    };
    watch(["preset"], () => {
      this.fresh = !this.quiet;
      this.usePreset();
    });
    watch(["n", "seed"], () => {
      if (this.quiet) return;
      this.wanted = () => this.redrawTokens();
      this.tick();
    });
    watch(["tokens", "V", "Q", "K", "discrete", "step"], () => {
      if (this.quiet) return;
      this.read();
      this.compute(this.dragging ? "drag" : "full");
    });
    watch(["preset_index"], () => {
      const name = this.model.get("preset_names")[this.model.get("preset_index")];
      if (name !== this.model.get("preset") && !this.quiet) this.set({ preset: name });
    });
    watch(["original"], () => this.retrace());
    watch(["trails", "show_hull", "label"], () => this.paint());
    watch(["t"], () => {
      this.t = Math.max(0, this.model.get("t"));
      this.paint();
    });
    watch(["playing"], () => this.tick());
    const theme = new MutationObserver(() => this.paint());
    theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    const sheets = [this.space, this.heat, this.plane].filter(Boolean);
    const size = new ResizeObserver((entries) => {
      for (const { target, contentRect: { width, height } } of entries) {
        sheets.find((sheet) => sheet.canvas === target)?.resize(width, height);
      }
      this.paint();
    });
    for (const { canvas } of sheets) size.observe(canvas);
    const near = new IntersectionObserver(([entry]) => {
      this.visible = entry.isIntersecting;
      if (this.visible) this.paint();
    });
    near.observe(this.body);
    this.off.push(() => theme.disconnect(), () => size.disconnect(), () => near.disconnect());

    const canvas = this.space.canvas;
    on(canvas, "pointerdown", (e) => this.grab(e));
    on(canvas, "pointermove", (e) => this.move(e));
    on(canvas, "pointerup", (e) => this.drop(e));
    on(canvas, "pointercancel", (e) => this.drop(e));
    on(canvas, "pointerleave", () => this.point(-1));
    on(canvas, "touchstart", (e) => {
      // A finger on a token drags it; beside the tokens it scrolls the page.
      const { clientX, clientY } = e.touches[0];
      if (this.spotAt({ clientX, clientY, pointerType: "touch" }) >= 0) e.preventDefault();
    }, { passive: false });
    on(canvas, "dblclick", (e) => this.add(this.worldAt(e)));
    on(canvas, "keydown", (e) => this.key(e));
    if (this.heat) {
      on(this.heat.canvas, "pointermove", (e) => {
        const { top, height } = this.heat.canvas.getBoundingClientRect();
        const row = Math.floor(((e.clientY - top) / height) * this.n);
        this.point(this.order?.[clamp(row, 0, this.n - 1)] ?? -1);
      });
      on(this.heat.canvas, "pointerleave", () => this.point(-1));
    }
    if (this.plane) {
      const plane = this.plane.canvas;
      on(plane, "pointerdown", (e) => this.grabEigenvalue(e));
      on(plane, "pointermove", (e) => this.held && this.moveEigenvalue(this.complexAt(e)));
      for (const name of ["pointerup", "pointercancel"]) {
        on(plane, name, () => {
          if (!this.held) return;
          this.held = this.dragging = false;
          this.model.save_changes();
          this.compute("full");
        });
      }
      on(plane, "keydown", (e) => this.eigenKey(e));
    }
    on(window, "hashchange", () => this.restore() && this.compute("full"));
  }

  destroy() {
    this.active = false;
    cancelAnimationFrame(this.request);
    clearTimeout(this.talk);
    clearTimeout(this.saving);
    for (const off of this.off) off();
    this.root.replaceChildren();
  }

  /* -------------------------------------------------------------------------- the state ---- */

  set(changes) {
    for (const [name, value] of Object.entries(changes)) this.model.set(name, value);
    this.model.save_changes();
  }

  read() {
    const tokens = this.model.get("tokens"), weights = ["Q", "K", "V"].map((name) => this.model.get(name));
    const known = JSON.stringify(weights);
    this.problem = "";
    try {
      if (known !== this.known) {
        this.known = "";
        this.system = E.makeSystem(...weights);
        this.regime = E.classify(this.system);
        this.known = known;
      }
      if (!tokens.length || tokens[0].length !== this.system.d) throw new RangeError("tokens and V must have one dimension.");
      this.n = tokens.length;
      this.d = this.system.d;
      this.x = Float64Array.from(tokens.flat());
    } catch (error) {
      this.problem = error.message;
    }
    if (this.chosen >= this.n) this.chosen = -1;
  }

  usePreset() {
    const preset = this.model.get("presets")[this.model.get("preset")];
    if (!preset?.V || this.quiet) return;
    const tokens = preset.tokens ?? box(preset.n, preset.V.length, preset.half_width, preset.seed);
    this.chosen = this.hover = -1;
    this.batch({
      V: preset.V, Q: preset.Q, K: preset.K, tokens, n: tokens.length, seed: preset.seed, half_width: preset.half_width,
      original: preset.coordinates === "original", t: 0, discrete: false,
      preset_index: this.model.get("preset_names").indexOf(this.model.get("preset")),
    });
  }

  /** Several traits at once, one computation. */
  batch(changes, mode = "full") {
    this.quiet = true;
    this.set(changes);
    this.quiet = false;
    this.t = this.model.get("t");
    this.read();
    this.compute(mode);
  }

  redrawTokens() {
    const { model } = this, d = model.get("V").length;
    this.batch({ tokens: box(model.get("n"), d, model.get("half_width"), model.get("seed")) });
  }

  reset() {
    const name = this.model.get("preset");
    if (this.model.get("presets")[name]?.V) this.usePreset();
    else this.redrawTokens();
  }

  add(at) {
    const where = at ?? Array.from({ length: this.d }, (_, a) => 0.2 * (a + 1));
    this.chosen = this.n;
    const tokens = [...this.model.get("tokens"), where];
    this.batch({ tokens, n: tokens.length });
  }

  remove() {
    if (this.n < 2) return;
    const which = this.chosen >= 0 ? this.chosen : this.n - 1;
    const tokens = this.model.get("tokens").filter((_, i) => i !== which);
    this.chosen = -1;
    this.batch({ tokens, n: tokens.length });
  }

  shift(i, by) {
    const tokens = this.model.get("tokens").map((row, k) => (k === i ? row.map((v, a) => v + by[a]) : row));
    this.model.set("tokens", tokens);
  }

  link() {
    const state = {};
    for (const name of LINKED) state[name] = this.model.get(name);
    state.tokens = state.tokens.map((row) => row.map((v) => Number(v.toPrecision(8))));
    state.t = Number(this.t.toPrecision(6));
    const code = btoa(JSON.stringify(state)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
    const url = new URL(location.href);
    url.hash = `lab=${this.index()}.${code}`;
    history.replaceState(null, "", url);
    navigator.clipboard?.writeText(url.href).then(() => this.remark("The link is copied."), () => this.remark("The link is in the address bar."));
    if (!navigator.clipboard) this.remark("The link is in the address bar.");
  }

  /** Which of the page's figures this is: on the site those out of sight have a place, but no figure yet. */
  index() {
    const all = [...document.querySelectorAll(".live-figure, .lab")];
    return all.filter((one) => !one.parentElement.closest(".live-figure")).findIndex((one) => one.contains(this.body));
  }

  restore() {
    const [, which, code] = /^#lab=(\d+)\.([\w-]+)$/.exec(location.hash) ?? [];
    if (code === undefined || (document.contains(this.body) && Number(which) !== this.index())) return false;
    if (!document.contains(this.body)) {
      // Anywidget renders before it attaches: look again when the figure is on the page.
      requestAnimationFrame(() => this.active && document.contains(this.body) && this.restore() && this.compute("full"));
      return false;
    }
    try {
      const state = JSON.parse(atob(code.replaceAll("-", "+").replaceAll("_", "/")));
      const traits = fromLink(state, this.model.get("preset_names"));
      this.quiet = true;
      this.set({ ...traits, playing: false });
      this.quiet = false;
      this.fresh = false;
      this.t = this.model.get("t");
      this.read();
      return true;
    } catch {
      this.quiet = false;
      this.remark("The link does not hold a state of this figure.");
      return false;
    }
  }

  /* ------------------------------------------------------------------------ computation ---- */

  compute(mode) {
    if (this.problem) return this.paint();
    this.mode = mode;
    if (this.model.get("discrete")) {
      const step = this.model.get("step"), depth = Math.min(400, Math.ceil(8 / step));
      this.solver = null;
      return this.take(E.layers(this.system, this.x, this.n, { step, depth }));
    }
    const drag = mode === "drag";
    const rtol = drag ? 1e-5 : this.n > 100 ? 1e-6 : 1e-9;
    this.solver = E.solver(this.system, this.x, this.n, { rtol, preview: drag });
    if (drag) this.pump(10);
    else if (this.whole) this.pump(this.n > 100 ? 80 : 30);
    else this.tick(); // the page is still being read: in pieces, frame by frame
  }

  pump(milliseconds) {
    if (!this.solver) return;
    const started = performance.now();
    const future = this.solver.step(milliseconds);
    this.spent = performance.now() - started;
    if (future) {
      this.solver = null;
      this.take(future);
    } else if (this.mode === "drag" || !this.future) this.take(this.solver.partial(), true);
    this.tick();
  }

  take(future, partial = false) {
    this.future = future;
    this.partial = partial;
    this.whole ||= !partial; // a first future is known to its end
    if (!partial) {
      const end = future.tCertified || future.tLast;
      this.span = clamp(future.tCertified ? 1.3 * end : end, 0.5, 1e4);
      if (future.status === "certified" && !future.leaders.length) this.span = Math.min(this.span, 50);
    }
    this.order = Array.from({ length: this.n }, (_, i) => i).sort(
      (i, j) => future.leaderOf[i] - future.leaderOf[j] || i - j,
    );
    if (this.fresh && !partial) {
      // Show at once what happens: some way on, not the first instant.
      this.fresh = false;
      if (this.t === 0 && !this.model.get("playing")) this.setTime(this.depthAt(0.35));
    }
    this.retrace();
    if (!partial && !this.dragging) this.report();
  }

  /** Paths of all tokens, sampled. */
  retrace() {
    const { future, n, d } = this;
    if (!future) return;
    const rescaled = !this.model.get("original");
    const last = Math.min(this.span, future.end);
    let times;
    if (future.status === "layers") times = Array.from(future.times);
    else if (this.mode === "drag") times = [...future.times].filter((t) => t <= last);
    else times = Array.from({ length: 61 }, (_, k) => (last * k) / 60);
    if (n > 300) times = times.filter((_, k) => k % 3 === 0);
    this.times = times;
    this.paths = times.map((t) => Float32Array.from(future.tokens(t, undefined, rescaled)));
    this.now = new Float64Array(n * d);
    this.paint();
  }

  report() {
    const { future, regime } = this;
    this.set({
      state: {
        theorem: regime.theorem, undecided: regime.undecided, geometry: regime.geometry, status: future.status,
        leaders: Array.from(future.leaders), leader_of: Array.from(future.leaderOf), falls: future.falls.length,
        certified_at: future.tCertified, reason: future.reason,
      },
    });
    this.explain();
    clearTimeout(this.talk);
    this.talk = setTimeout(() => this.tell(), 400);
  }

  remark(text) {
    this.note.textContent = text;
  }

  tell(text) {
    if (!this.active) return;
    this.say.textContent = text ?? (this.problem || (this.future ? E.describe(this.regime, this.future, this.t) : ""));
  }

  /* ------------------------------------------------------------------------------- time ---- */

  /** Depth of a place u on the slider: linear to the span, then logarithmic to 1e6 if that is known. */
  depthAt(u) {
    const { span, future } = this;
    if (!future || future.end < Infinity) return u * Math.min(span, future?.end ?? span);
    return u <= 0.75 ? (u / 0.75) * span : span * (FAR / span) ** ((u - 0.75) / 0.25);
  }

  place() {
    const { span, future, t } = this;
    if (!future || future.end < Infinity) return clamp(t / Math.min(span, future?.end ?? span), 0, 1);
    return t <= span ? (0.75 * t) / span : clamp(0.75 + (0.25 * Math.log(t / span)) / Math.log(FAR / span), 0, 1);
  }

  setTime(t) {
    this.t = Math.max(0, t);
    this.model.set("t", this.t);
    this.paint();
    clearTimeout(this.saving);
    this.saving = setTimeout(() => this.active && this.model.save_changes(), 150);
    clearTimeout(this.talk);
    this.talk = setTimeout(() => this.tell(), 700);
  }

  setPlaying(on) {
    if (on && this.place() >= 0.999) this.setTime(0);
    this.set({ playing: on });
  }

  /* ------------------------------------------------------------------------------ frames ---- */

  paint() {
    this.dirty = true;
    this.tick();
  }

  tick() {
    if (this.request || !this.active) return;
    this.request = requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    this.request = 0;
    if (!this.active) return;
    const since = Math.min(50, now - (this.before ?? now));
    this.before = now;
    const started = performance.now();
    const begun = Boolean(this.wanted); // a computation begun in this frame has had its share of it
    if (begun) {
      const call = this.wanted;
      this.wanted = null;
      call();
    }
    const playing = this.model.get("playing");
    if (this.solver && !begun) this.pump(this.dragging || playing || !this.whole ? 8 : this.n > 100 ? 100 : 40);
    if (playing && this.visible && this.future) {
      const u = this.place() + since / 1000 / SECONDS;
      this.t = this.depthAt(Math.min(u, 1));
      this.model.set("t", this.t);
      this.dirty = true;
      if (u >= 1) this.set({ playing: false });
    }
    this.script = performance.now() - started;
    if (this.dirty && this.visible) {
      this.dirty = false;
      this.draw();
    }
    if (this.solver || (playing && this.visible)) this.tick();
    else if (!playing) this.before = undefined;
  }

  /* ------------------------------------------------------------------------------ drawing ---- */

  draw() {
    const ink = isDark() ? DARK : LIGHT;
    this.paintViews(ink);
    // After the pictures: a canvas asks for the styles of a page that has changed.
    const playing = this.model.get("playing") ? "Pause" : "Play", clock = `t = ${show(this.t)}`;
    if (this.play.textContent !== playing) this.play.textContent = playing;
    this.slider.value = String(Math.round(1000 * this.place()));
    if (this.clock.textContent === clock) return;
    this.clock.textContent = clock;
    this.slider.setAttribute("aria-valuetext", `depth ${show(this.t)}`);
  }

  paintViews(ink) {
    if (this.problem || !this.future) {
      const pen = this.space.begin(ink.paper);
      pen.fillStyle = ink.ink;
      pen.fillText(this.problem || "computing", 12, 24);
      this.tell(this.problem);
      return;
    }
    this.future.tokens(Math.min(this.t, this.future.end), this.now, !this.model.get("original"));
    this.weights = null;
    if (this.d === 1) this.drawLine(ink);
    else this.drawSpace(ink);
    if (this.heat) this.drawHeat(ink);
    if (this.plane) this.drawPlane(ink);
    this.root.dataset.t = String(this.t);
  }

  /** Where a point of the world is on the sheet; sets this.scale for the way back. */
  fit() {
    const { d, x, now, space } = this;
    const low = Array(d).fill(Infinity), high = Array(d).fill(-Infinity);
    for (const cloud of [x, now]) {
      for (let k = 0; k < cloud.length; k++) {
        if (!Number.isFinite(cloud[k])) continue;
        low[k % d] = Math.min(low[k % d], cloud[k]);
        high[k % d] = Math.max(high[k % d], cloud[k]);
      }
    }
    if (this.model.get("original")) {
      // Tokens run away: show them, and the origin.
      low.fill(0);
      high.fill(0);
      for (let k = 0; k < now.length; k++) {
        low[k % d] = Math.min(low[k % d], now[k]);
        high[k % d] = Math.max(high[k % d], now[k]);
      }
    }
    const centre = low.map((v, a) => 0.5 * (v + high[a]));
    let half = low.map((v, a) => Math.max(0.5 * (high[a] - v), 1e-12));
    const most = Math.max(...half), least = Math.min(...half);
    // One scale for directions of like extent.
    half = half.map((v) => (most < 3 * least ? most : Math.max(...half.filter((other) => other < 1.5 * v))));
    const pad = d === 3 ? 1.55 : 1.12, equal = half.every((v) => v === most);
    const room = [space.w / 2 - 14, space.h / 2 - 14], side = Math.min(...room);
    const scale = half.map((v, a) => (d === 2 && !equal ? room[a] : side) / (pad * Math.max(v, 1e-6 * most)));
    return { centre, scale, equal };
  }

  axes3() {
    const { yaw, pitch } = this, c = Math.cos(yaw), s = Math.sin(yaw), p = Math.cos(pitch), q = Math.sin(pitch);
    return [[c, s, 0], [-s * q, c * q, p], [s * p, -c * p, q]]; // right, up, towards the eye
  }

  projector() {
    if (!this.dragging || !this.frozen) this.frozen = this.fit();
    const { centre, scale } = this.frozen, { w, h } = this.space;
    if (this.d === 2) {
      return (p, i) => [w / 2 + (p[2 * i] - centre[0]) * scale[0], h / 2 - (p[2 * i + 1] - centre[1]) * scale[1], 0];
    }
    const [right, up, eye] = this.axes3();
    return (p, i) => {
      const x = scale[0] * (p[3 * i] - centre[0]), y = scale[1] * (p[3 * i + 1] - centre[1]);
      const z = scale[2] * (p[3 * i + 2] - centre[2]);
      return [
        w / 2 + right[0] * x + right[1] * y + right[2] * z,
        h / 2 - up[0] * x - up[1] * y - up[2] * z,
        eye[0] * x + eye[1] * y + eye[2] * z,
      ];
    };
  }

  drawSpace(ink) {
    const { n, d, future, now, paths, times, t } = this, pen = this.space.begin(ink.paper);
    const at = (this.at = this.projector());
    this.spots = Array.from({ length: n }, (_, i) => at(now, i));
    const leaders = new Set(future.leaders);
    this.drawAxes(pen, ink, at);
    if (this.model.get("show_hull") && n > 1 && n <= 400) {
      const cloud = Float64Array.from(now), { vertices, edges } = E.hull(cloud, n, d);
      pen.strokeStyle = ink.edge;
      pen.lineWidth = 1.2;
      pen.fillStyle = ink.hull;
      if (d === 2 && vertices.length > 2) {
        pen.beginPath();
        vertices.forEach((i, k) => pen[k ? "lineTo" : "moveTo"](this.spots[i][0], this.spots[i][1]));
        pen.closePath();
        pen.fill();
        pen.stroke();
      } else {
        pen.lineWidth = 0.7;
        pen.beginPath();
        for (const [i, j] of edges) {
          pen.moveTo(this.spots[i][0], this.spots[i][1]);
          pen.lineTo(this.spots[j][0], this.spots[j][1]);
        }
        pen.stroke();
      }
    }
    if (this.model.get("trails") && n > 300 && paths.length > 1) {
      pen.drawImage(this.keptTrails(ink, at), 0, 0, this.space.w, this.space.h);
    } else if (this.model.get("trails") && paths.length > 1) {
      const rescaled = !this.model.get("original");
      for (const past of rescaled ? [false, true] : [true]) {
        pen.strokeStyle = past ? ink.trail : ink.future;
        pen.lineWidth = past ? 1.3 : 1;
        pen.beginPath();
        for (let i = 0; i < n; i++) {
          let on = false;
          for (let k = 0; k < paths.length; k++) {
            if (past ? times[k] > t : k + 1 < paths.length && times[k + 1] < t) continue;
            const [px, py] = at(paths[k], i);
            pen[on ? "lineTo" : "moveTo"](px, py);
            on = true;
          }
          if (past && on) pen.lineTo(this.spots[i][0], this.spots[i][1]);
        }
        pen.stroke();
      }
    }
    this.drawHyperplanes(pen, ink, at);
    if (t > 0 && !this.model.get("original") && n <= 400) {
      pen.strokeStyle = ink.start;
      pen.lineWidth = 0.8;
      for (let i = 0; i < n; i++) {
        const [px, py] = at(this.x, i);
        pen.beginPath();
        pen.arc(px, py, 2, 0, 7);
        pen.stroke();
      }
    }
    if (n > 300) {
      pen.fillStyle = ink.token;
      for (const [px, py] of this.spots) pen.fillRect(px - 1.5, py - 1.5, 3, 3);
    }
    const order = n > 300 ? Array.from(future.leaders) : Array.from({ length: n }, (_, i) => i);
    if (d === 3) order.sort((i, j) => this.spots[i][2] - this.spots[j][2]);
    for (const i of order) {
      const [px, py] = this.spots[i], lead = leaders.has(i);
      pen.fillStyle = lead ? ink.leader : ink.token;
      pen.beginPath();
      pen.arc(px, py, lead ? 5.5 : 3.4, 0, 7);
      pen.fill();
      if (lead) {
        pen.strokeStyle = ink.leader;
        pen.lineWidth = 1.2;
        pen.beginPath();
        pen.arc(px, py, 9, 0, 7);
        pen.stroke();
      }
    }
    this.drawChosen(pen, ink);
  }

  drawAxes(pen, ink, at) {
    const { space, d } = this;
    pen.strokeStyle = ink.line;
    pen.fillStyle = ink.faint;
    pen.font = "12px system-ui, sans-serif";
    pen.lineWidth = 1;
    const name = !this.model.get("original") ? "z" : "x";
    if (d === 2) {
      const [ox, oy] = at([0, 0], 0);
      pen.beginPath();
      pen.moveTo(0, oy);
      pen.lineTo(space.w, oy);
      pen.moveTo(ox, 0);
      pen.lineTo(ox, space.h);
      pen.stroke();
      pen.fillText(`${name}₁`, space.w - 20, clamp(oy - 6, 12, space.h - 4));
      pen.fillText(`${name}₂`, clamp(ox + 6, 2, space.w - 20), 14);
      this.drawScale(pen, ink);
      return;
    }
    const size = (0.5 * Math.min(space.w, space.h)) / 1.7, { scale } = this.frozen;
    if (!this.frozen.equal) {
      const factor = scale.map((v) => show(Math.max(...scale) / v));
      const small = factor.map((v, a) => (v === "1" ? "" : `${name}${"₁₂₃"[a]} drawn ${v} times smaller`)).filter(Boolean);
      pen.fillText(small.join(", "), 12, space.h - 10);
    }
    for (let a = 0; a < 3; a++) {
      const tip = [...this.frozen.centre];
      tip[a] += size / scale[a];
      const [x0, y0] = at(this.frozen.centre, 0), [x1, y1] = at(tip, 0);
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.lineTo(x1, y1);
      pen.stroke();
      pen.fillText(`${name}${"₁₂₃"[a]}`, x1 + 4, y1 - 4);
    }
  }

  drawScale(pen, ink) {
    const { scale, equal } = this.frozen, { w, h } = this.space;
    pen.strokeStyle = pen.fillStyle = ink.faint;
    const length = (room, s) => {
      const unit = 10 ** Math.floor(Math.log10(room / s));
      return [5, 2, 1].map((m) => m * unit).find((v) => v * s <= room) ?? unit;
    };
    const across = length(0.3 * w, scale[0]);
    pen.beginPath();
    pen.moveTo(12, h - 12);
    pen.lineTo(12 + across * scale[0], h - 12);
    pen.fillText(show(across), 18, h - 17);
    if (!equal) {
      const up = length(0.3 * h, scale[1]);
      pen.moveTo(12, h - 12);
      pen.lineTo(12, h - 12 - up * scale[1]);
      pen.fillText(show(up), 18, h - 6 - up * scale[1]);
    }
    pen.stroke();
  }

  /** Where Theorem 4.2 puts the limits: level sets of the left eigenvector through the leaders. */
  hyperplanes() {
    const { regime, future, d, system } = this;
    if (regime.theorem !== "4.2" || d === 1 || future.status !== "certified" || this.model.get("original")) return null;
    if (this.levels?.of === future) return this.levels;
    const lead = E.spectrum(system.V)[0].re;
    const columns = Array.from({ length: d }, (_, b) =>
      Array.from({ length: d }, (_, a) => system.V[a][b] - (a === b ? lead : 0)));
    const across = d === 2 ? columns.map(([p, q]) => [-q, p])
      : [[0, 1], [1, 2], [2, 0]].map(([i, j]) => {
        const [p, q] = [columns[i], columns[j]];
        return [p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]];
      });
    const size = (v) => Math.hypot(...v);
    let normal = across.reduce((a, b) => (size(b) > size(a) ? b : a));
    normal = normal.map((v) => v / size(normal));
    const z = future.tokens(future.tCertified, undefined, true);
    const at = (i) => normal.reduce((sum, v, a) => sum + v * z[i * d + a], 0);
    this.levels = { of: future, normal, values: Array.from(future.leaders, at) };
    return this.levels;
  }

  drawHyperplanes(pen, ink, at) {
    const levels = this.hyperplanes();
    if (!levels) return;
    const { d, now, n } = this, { normal, values } = levels;
    const spread = (u) => {
      let low = Infinity, high = -Infinity;
      for (let i = 0; i < n; i++) {
        const v = u.reduce((sum, x, a) => sum + x * now[i * d + a], 0);
        [low, high] = [Math.min(low, v), Math.max(high, v)];
      }
      const more = 0.15 * (high - low) + 1e-9;
      return [low - more, high + more];
    };
    const sum = (...terms) => terms.reduce((all, [c, v]) => all.map((x, a) => x + c * v[a]), Array(d).fill(0));
    pen.strokeStyle = ink.chosen;
    pen.fillStyle = ink.hull;
    pen.lineWidth = 1.2;
    pen.setLineDash([6, 4]);
    for (const c of values) {
      let spots;
      if (d === 2) {
        const [x, y] = at(sum([c, normal]), 0), [x1, y1] = at(sum([c, normal], [1, [-normal[1], normal[0]]]), 0);
        const { w, h } = this.space, size = Math.hypot(x1 - x, y1 - y), u = [(x1 - x) / size, (y1 - y) / size];
        const near = u[0] * (w / 2 - x) + u[1] * (h / 2 - y);
        spots = [near - w - h, near + w + h].map((r) => [x + r * u[0], y + r * u[1]]);
      } else {
        const k = normal.map(Math.abs).indexOf(Math.min(...normal.map(Math.abs)));
        const e = [0, 1, 2].map((a) => (a === k ? 1 : 0) - normal[k] * normal[a]), size = Math.hypot(...e);
        const u = e.map((v) => v / size);
        const v = [0, 1, 2].map((a) => normal[(a + 1) % 3] * u[(a + 2) % 3] - normal[(a + 2) % 3] * u[(a + 1) % 3]);
        const [[p, q], [r, s]] = [spread(u), spread(v)];
        spots = [[p, r], [q, r], [q, s], [p, s]].map(([a, b]) => at(sum([c, normal], [a, u], [b, v]), 0));
      }
      pen.beginPath();
      spots.forEach(([x, y], k) => pen[k ? "lineTo" : "moveTo"](x, y));
      if (d === 3) {
        pen.closePath();
        pen.fill();
      }
      pen.stroke();
    }
    pen.setLineDash([]);
  }

  /** Many trails are drawn once and kept as a picture until something but the depth changes. */
  keptTrails(ink, at) {
    const { canvas } = this.space;
    const key = JSON.stringify([this.yaw, this.pitch, this.frozen, ink.trail, canvas.width, canvas.height]);
    if (this.kept?.key !== key || this.kept.paths !== this.paths) {
      const sheet = this.kept?.sheet ?? document.createElement("canvas");
      sheet.width = canvas.width;
      sheet.height = canvas.height;
      const pen = sheet.getContext("2d"), ratio = canvas.width / this.space.w;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.strokeStyle = ink.future;
      pen.beginPath();
      for (let i = 0; i < this.n; i++) this.paths.forEach((path, k) => pen[k ? "lineTo" : "moveTo"](...at(path, i).slice(0, 2)));
      pen.stroke();
      this.kept = { sheet, key, paths: this.paths };
    }
    return this.kept.sheet;
  }

  drawChosen(pen, ink) {
    for (const [i, width] of [[this.hover, 1.5], [this.chosen, 2.5]]) {
      if (i < 0 || i >= this.n || !this.spots[i]) continue;
      const [px, py] = this.spots[i], l = this.future.leaderOf[i];
      pen.strokeStyle = ink.chosen;
      pen.lineWidth = 1.8;
      pen.beginPath();
      this.paths.forEach((path, k) => {
        const spot = this.d === 1 ? [this.line.X(this.times[k]), this.line.Y(path[i])] : this.at(path, i);
        pen[k ? "lineTo" : "moveTo"](spot[0], spot[1]);
      });
      pen.stroke();
      if (this.n <= 400) {
        // To whom it listens: the stronger the attention, the wider the line.
        const P = this.attention();
        for (let j = 0; j < this.n; j++) {
          if (j === i || !(P[i * this.n + j] > 0.02)) continue;
          pen.lineWidth = 4 * P[i * this.n + j];
          pen.globalAlpha = 0.6;
          pen.beginPath();
          pen.moveTo(px, py);
          pen.lineTo(this.spots[j][0], this.spots[j][1]);
          pen.stroke();
        }
        pen.globalAlpha = 1;
      }
      pen.lineWidth = width;
      pen.beginPath();
      pen.arc(px, py, 12, 0, 7);
      pen.stroke();
      pen.fillStyle = ink.chosen;
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(l === i ? `token ${i}, a leader` : l >= 0 ? `token ${i} follows ${l}` : `token ${i}`, clamp(px + 14, 4, this.space.w - 130), clamp(py - 12, 14, this.space.h - 6));
    }
  }

  /** d = 1: tokens against depth. */
  drawLine(ink) {
    const { n, now, paths, times, t, future } = this, pen = this.space.begin(ink.paper), { w, h } = this.space;
    const original = this.model.get("original");
    let low = Infinity, high = -Infinity;
    const seen = original ? [this.x, now] : [...paths, now];
    for (const p of seen) for (const v of p) if (Number.isFinite(v)) [low, high] = [Math.min(low, v), Math.max(high, v)];
    const pad = 0.06 * (high - low || 1);
    if (!this.dragging || !this.frozen) this.frozen = { low: low - pad, high: high + pad };
    const f = this.frozen, span = Math.min(this.span, future.end);
    const X = (time) => 36 + (w - 60) * clamp(time / span, 0, 1.02), Y = (v) => h - 24 - ((h - 40) * (v - f.low)) / (f.high - f.low);
    this.line = { X, Y };
    pen.strokeStyle = ink.line;
    pen.fillStyle = ink.faint;
    pen.font = "12px system-ui, sans-serif";
    pen.beginPath();
    pen.moveTo(36, Y(0));
    pen.lineTo(w, Y(0));
    pen.moveTo(36, 0);
    pen.lineTo(36, h - 20);
    pen.stroke();
    pen.fillText(original ? "x" : "z", 10, 16);
    pen.fillText("depth t", w - 56, h - 6);
    pen.fillText(show(span), X(span) - 16, Y(0) + 14);
    const leaders = new Set(future.leaders);
    for (let i = 0; i < n; i++) {
      pen.strokeStyle = leaders.has(i) ? ink.leader : ink.trail;
      pen.lineWidth = leaders.has(i) ? 2 : 1.3;
      pen.beginPath();
      paths.forEach((p, k) => pen[k ? "lineTo" : "moveTo"](X(times[k]), Y(p[i])));
      pen.stroke();
    }
    pen.strokeStyle = ink.edge;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(X(t), 0);
    pen.lineTo(X(t), h - 20);
    pen.stroke();
    this.spots = Array.from({ length: n }, (_, i) => [X(t), Y(now[i]), 0]);
    for (let i = 0; i < n; i++) {
      pen.fillStyle = leaders.has(i) ? ink.leader : ink.token;
      pen.beginPath();
      pen.arc(...this.spots[i].slice(0, 2), leaders.has(i) ? 5.5 : 3.6, 0, 7);
      pen.fill();
    }
    this.drawChosen(pen, ink);
  }

  /** P at the depth shown, computed once a frame. */
  attention() {
    this.weights ??= this.future.attention(Math.min(this.t, this.future.end));
    return this.weights;
  }

  drawHeat(ink) {
    const { n, order } = this, pen = this.heat.begin(ink.paper), { w, h } = this.heat;
    if (n > 300) {
      pen.fillStyle = ink.ink;
      pen.fillText("not drawn for more than 300 tokens", 8, 20);
      return;
    }
    const P = this.attention(), [r0, g0, b0] = ink.cool, [r1, g1, b1] = ink.warm;
    const ch = h / n, tile = (this.tile ??= document.createElement("canvas"));
    if (tile.width !== n || tile.height !== n) tile.width = tile.height = n;
    const brush = tile.getContext("2d"), image = brush.createImageData(n, n);
    for (let r = 0, k = 0; r < n; r++) {
      for (let c = 0; c < n; c++, k += 4) {
        const v = Math.sqrt(P[order[r] * n + order[c]]);
        image.data[k] = r0 + v * (r1 - r0);
        image.data[k + 1] = g0 + v * (g1 - g0);
        image.data[k + 2] = b0 + v * (b1 - b0);
        image.data[k + 3] = 255;
      }
    }
    brush.putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(tile, 0, 0, w, h);
    pen.strokeStyle = ink.line;
    pen.strokeRect(0.5, 0.5, w - 1, h - 1);
    const marked = this.hover >= 0 ? this.hover : this.chosen;
    if (marked >= 0) {
      pen.strokeStyle = ink.chosen;
      pen.lineWidth = 2;
      pen.strokeRect(0, order.indexOf(marked) * ch, w, Math.max(ch, 2));
    }
  }

  drawPlane(ink) {
    const pen = this.plane.begin(ink.paper), { w, h } = this.plane;
    this.values = E.spectrum(this.system.V);
    const reach = Math.max(1, ...this.values.map((v) => Math.hypot(v.re, v.im)));
    if (!this.held) this.planeScale = Math.min(w, h) / 2 / (1.35 * reach);
    const s = this.planeScale, X = (re) => w / 2 + s * re, Y = (im) => h / 2 - s * im;
    pen.fillStyle = ink.hull;
    pen.fillRect(w / 2, 0, w / 2, h);
    pen.strokeStyle = ink.line;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(0, h / 2);
    pen.lineTo(w, h / 2);
    pen.moveTo(w / 2, 0);
    pen.lineTo(w / 2, h);
    pen.stroke();
    const lead = this.values[0], size = (v) => Math.hypot(v.re, v.im);
    // The others' disc: outside it the chosen one leads, alone, on the positive axis by the theorems.
    const moved = this.values[this.eigen] ?? lead;
    const others = this.values.filter((v, k) => k !== this.eigen && !(v.re === moved.re && v.im === -moved.im && v.im !== 0));
    const disc = Math.max(0, ...others.map(size));
    pen.beginPath();
    pen.arc(w / 2, h / 2, s * disc, 0, 7);
    pen.fill();
    pen.strokeStyle = ink.edge;
    pen.lineWidth = 3;
    pen.beginPath();
    pen.moveTo(w / 2 + s * disc, h / 2);
    pen.lineTo(w, h / 2);
    pen.stroke();
    pen.strokeStyle = ink.faint;
    pen.lineWidth = 1;
    pen.setLineDash([4, 4]);
    pen.beginPath();
    pen.arc(w / 2, h / 2, s * Math.hypot(lead.re, lead.im), 0, 7);
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = ink.faint;
    pen.font = "11px system-ui, sans-serif";
    pen.fillText("contracts", 6, 14);
    pen.fillText("turns", w / 2 + 4, h - 6);
    pen.textAlign = "right";
    pen.fillText("expands", w - 6, 14);
    pen.fillText("leads", w - 6, h / 2 + 16);
    pen.textAlign = "left";
    this.values.forEach((v, k) => {
      pen.fillStyle = k === 0 ? ink.leader : ink.token;
      pen.beginPath();
      pen.arc(X(v.re), Y(v.im), 6, 0, 7);
      pen.fill();
      if (k === this.eigen && document.activeElement === this.plane.canvas) {
        pen.strokeStyle = ink.chosen;
        pen.lineWidth = 2.5;
        pen.beginPath();
        pen.arc(X(v.re), Y(v.im), 10, 0, 7);
        pen.stroke();
      }
    });
    const text = this.values.map((v) => (v.im ? `${show(v.re)} ${v.im > 0 ? "+" : "-"} ${show(Math.abs(v.im))}i` : show(v.re))).join(", ");
    this.plane.canvas.setAttribute("aria-label", `Eigenvalues of V: ${text}. Comma and full stop choose one, arrow keys move it.`);
  }

  explain() {
    const { regime, future } = this;
    const head = regime.undecided ? "Undecided at this precision" : regime.theorem === "collapse" ? "Collapse: the theorem of the appendix applies"
      : regime.theorem ? `Theorem ${regime.theorem} applies` : "No theorem applies";
    const known = {
      certified: future.leaders.length
        ? `Certified from t = ${show(future.tCertified)}: ${future.leaders.length} leader${future.leaders.length === 1 ? "" : "s"}` +
          (future.falls.length ? `, after ${future.falls.length} fall${future.falls.length === 1 ? "" : "s"}` : "")
        : "Certified: every token goes to the origin",
      clusters: `Limits certified from t = ${show(future.tCertified ?? 0)}; who leads inside the clusters is not: ${future.reason}`,
      layers: "Discrete layers: no certificate",
    }[future.status] ?? `Not certified: ${future.reason}`;
    const wanted = regime.theorem ?? (this.d === 1 ? "2.1" : "4.2");
    const rows = regime.hypotheses.filter((h) => h.theorem === wanted);
    const value = (v) => (typeof v === "number" ? show(v) : v && typeof v === "object" ? `${show(v.re)} ± ${show(Math.abs(v.im))}i` : String(v));
    const mark = (h) => (h === null ? "undecided" : h ? "holds" : "fails");
    this.verdict.replaceChildren(
      make("p", { class: "lab-head" }, make("strong", {}, head), `. ${known}.`),
      make("p", { class: "lab-geometry" }, `Limit to expect: ${regime.geometry}.`),
      make("details", {}, make("summary", {}, regime.theorem ? "Its hypotheses" : `What ${wanted} asks`),
        make("div", { class: "lab-scroll", tabindex: "0", role: "region", "aria-label": `Hypotheses. ${this.model.get("label")}` },
          make("table", {}, make("thead", {}, make("tr", {}, ...["hypothesis", "value", "must be", "verdict"].map((s) => make("th", { scope: "col" }, s)))),
            make("tbody", {}, ...rows.map((h) => make("tr", {}, ...[h.name, value(h.value), h.must, mark(h.holds)].map((s) => make("td", {}, s)))))))),
    );
    this.verdict.dataset.theorem = regime.theorem ?? "none";
    this.verdict.dataset.status = future.status;
    this.verdict.dataset.leaders = future.leaders.join(" ");
  }

  /* -------------------------------------------------------------------------------- hands ---- */

  spotAt(e) {
    const { left, top } = this.space.canvas.getBoundingClientRect(), x = e.clientX - left, y = e.clientY - top;
    let best = -1, least = e.pointerType === "touch" ? 30 : 16;
    (this.spots ?? []).forEach(([px, py], i) => {
      const far = Math.hypot(px - x, py - y);
      if (far < least) [best, least] = [i, far];
    });
    return best;
  }

  point(i) {
    if (i === this.hover) return;
    this.hover = i;
    this.paint();
  }

  grab(e) {
    if (this.problem || !this.future) return;
    this.space.canvas.setPointerCapture(e.pointerId);
    this.space.canvas.focus({ preventScroll: true });
    this.last = [e.clientX, e.clientY];
    const i = this.spotAt(e);
    if (i >= 0) {
      this.chosen = i;
      this.dragging = true;
      this.turning = false;
    } else if (this.d === 3) this.turning = true;
    else this.chosen = -1;
    this.paint();
  }

  move(e) {
    if (!this.dragging && !this.turning) return this.point(this.spotAt(e));
    const dx = e.clientX - this.last[0], dy = e.clientY - this.last[1];
    if (dx === 0 && dy === 0) return;
    this.last = [e.clientX, e.clientY];
    if (this.turning) {
      this.yaw += dx * 0.01;
      this.pitch = clamp(this.pitch + dy * 0.01, -1.5, 1.5);
      return this.paint();
    }
    this.push(this.chosen, this.worldShift(dx, dy));
  }

  /** Move a token, and its future with it, once a frame. */
  push(i, by) {
    this.pending = (this.pending ?? Array(this.d).fill(0)).map((v, a) => v + by[a]);
    this.wanted = () => {
      const sum = this.pending;
      this.pending = null;
      this.quiet = true;
      this.shift(i, sum);
      this.quiet = false;
      this.read();
      this.compute(this.dragging ? "drag" : "full");
    };
    this.tick();
  }

  drop() {
    if (this.turning) this.turning = false;
    if (!this.dragging) return;
    const finish = () => {
      this.dragging = false;
      this.model.save_changes();
      this.compute("full");
    };
    const waiting = this.wanted;
    this.wanted = () => {
      waiting?.();
      finish();
    };
    this.tick();
  }

  worldShift(dx, dy) {
    if (this.d === 1) return [(-dy * (this.frozen.high - this.frozen.low)) / (this.space.h - 40)];
    const { scale } = this.frozen;
    if (this.d === 2) return [dx / scale[0], -dy / scale[1]];
    const [right, up] = this.axes3();
    return right.map((v, a) => (dx * v - dy * up[a]) / scale[a]);
  }

  worldAt(e) {
    const { left, top } = this.space.canvas.getBoundingClientRect(), { w, h } = this.space;
    const x = e.clientX - left, y = e.clientY - top;
    if (this.d === 1) return [this.frozen.low + ((h - 24 - y) * (this.frozen.high - this.frozen.low)) / (h - 40)];
    return this.worldShift(x - w / 2, y - h / 2).map((v, a) => v + this.frozen.centre[a]);
  }

  key(e) {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const by = arrows[e.key], far = e.shiftKey ? 40 : 8;
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (by && this.chosen >= 0) this.push(this.chosen, this.worldShift(by[0] * far, by[1] * far));
    else if (by && this.d === 3) {
      this.yaw += 0.1 * by[0];
      this.pitch = clamp(this.pitch + 0.1 * by[1], -1.5, 1.5);
      this.paint();
    } else if (by) return;
    else if (e.key === "." || e.key === ",") {
      this.chosen = (this.chosen + (e.key === "." ? 1 : -1) + this.n + (this.chosen < 0 && e.key === "," ? 1 : 0)) % this.n;
      const l = this.future?.leaderOf[this.chosen];
      this.tell(`Token ${this.chosen}${l === this.chosen ? ", a leader" : l >= 0 ? `, follows ${l}` : ""}.`);
      this.paint();
    } else if (e.key === "Escape") {
      this.chosen = -1;
      this.paint();
    } else if (e.key === "Delete" || e.key === "Backspace") this.remove();
    else if (e.key === "+") this.add();
    else if (e.key === " ") this.setPlaying(!this.model.get("playing"));
    else if (e.key === "Home") this.setTime(0);
    else if (e.key === "End") this.setTime(this.depthAt(1));
    else return;
    e.preventDefault();
  }

  complexAt(e) {
    const { left, top } = this.plane.canvas.getBoundingClientRect(), { w, h } = this.plane;
    const re = (e.clientX - left - w / 2) / this.planeScale, im = (h / 2 - (e.clientY - top)) / this.planeScale;
    return { re, im: Math.abs(im * this.planeScale) < 7 ? 0 : im };
  }

  grabEigenvalue(e) {
    const at = this.complexAt(e), reach = 24 / this.planeScale;
    let best = -1, least = reach;
    this.values.forEach((v, k) => {
      const far = Math.hypot(v.re - at.re, v.im - at.im);
      if (far < least) [best, least] = [k, far];
    });
    if (best < 0) return;
    this.plane.canvas.setPointerCapture(e.pointerId);
    this.eigen = best;
    this.held = this.dragging = true;
  }

  moveEigenvalue(to) {
    this.wanted = () => {
      const V = E.withEigenvalue(this.system.V, this.eigen, to);
      this.quiet = true;
      this.model.set({ V, preset: "Custom", preset_index: this.model.get("preset_names").length - 1 });
      this.quiet = false;
      this.read();
      this.values = E.spectrum(V);
      let best = 0;
      this.values.forEach((v, k) => {
        const far = (x) => Math.hypot(x.re - to.re, x.im - to.im);
        if (far(v) < far(this.values[best])) best = k;
      });
      this.eigen = best;
      this.compute(this.dragging ? "drag" : "full");
      if (this.dragging) this.explain();
      else this.model.save_changes();
    };
    this.tick();
  }

  eigenKey(e) {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[e.key];
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "." || e.key === ",") {
      this.eigen = (this.eigen + (e.key === "." ? 1 : -1) + this.d) % this.d;
      this.paint();
    } else if (by) {
      const v = this.values[this.eigen], step = e.shiftKey ? 0.25 : 0.05;
      let im = v.im + step * by[1];
      if (Math.abs(im) < step / 2) im = 0;
      this.moveEigenvalue({ re: v.re + step * by[0], im });
    } else return;
    e.preventDefault();
  }

  /* -------------------------------------------------------------------------------- files ---- */

  save(blob, name) {
    const a = make("a", { href: URL.createObjectURL(blob), download: name });
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 1000);
  }

  savePNG() {
    this.space.canvas.toBlob((blob) => this.save(blob, "attention.png"));
  }

  saveCSV() {
    const { n, d, future, t } = this;
    const x = future.tokens(t, undefined, false), z = future.tokens(t, undefined, true);
    const names = (s) => Array.from({ length: d }, (_, a) => `${s}${a + 1}`);
    const rows = [["token", "leader", "t", ...names("x"), ...names("z")].join()];
    for (let i = 0; i < n; i++) {
      rows.push([i, future.leaderOf[i], t, ...x.slice(i * d, i * d + d), ...z.slice(i * d, i * d + d)].join());
    }
    this.save(new Blob([`${rows.join("\n")}\n`], { type: "text/csv" }), "tokens.csv");
  }
}

export default {
  render({ model, el }) {
    const lab = new Lab(model, el);
    el.lab = lab;
    return () => lab.destroy();
  },
};
