/* Brings the interactive figures of a page to life, and only there. The page holds the state of its
   widgets as Jupyter saved it; a figure's code is loaded when the figure comes near the viewport, and
   a still picture in the same output holds its place until it is alive. Of ipywidgets this file knows
   what the figures use, as the browser's own controls: the widget manager weighs twenty times as
   much as a figure, and only a kernel needs it. */
(() => {
  "use strict";
  const STATE = 'script[type="application/vnd.jupyter.widget-state+json"]';
  const VIEW = 'script[type="application/vnd.jupyter.widget-view+json"]';
  const REFERENCE = "IPY_MODEL_";
  const base = document.currentScript.src;

  const same = (a, b) =>
    a === b || (typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));

  /* What a widget's code asks of its model: Backbone's names, with no kernel behind them. */
  class Model {
    constructor(state) {
      this.state = state;
      this.calls = new Map();
    }

    get(name) {
      return this.state[name];
    }

    set(name, value) {
      const wanted = typeof name === "string" ? { [name]: value } : name;
      const changed = Object.keys(wanted).filter((key) => !same(this.state[key], wanted[key]));
      for (const key of changed) this.state[key] = wanted[key];
      for (const key of changed) {
        for (const call of [...(this.calls.get(`change:${key}`) ?? [])]) call();
      }
    }

    on(event, call) {
      if (!this.calls.has(event)) this.calls.set(event, new Set());
      this.calls.get(event).add(call);
    }

    off(event, call) {
      this.calls.get(event)?.delete(call);
    }

    save_changes() {}
  }

  const models = new Map();

  const find = (reference) => {
    const model = models.get(String(reference).replace(REFERENCE, ""));
    if (!model) throw new Error("the page does not hold the state of this figure");
    return model;
  };

  const make = (tag, traits = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), traits);
    element.append(...children);
    return element;
  };

  let made = 0;

  /* A control between its label and its readout, told when its model changes. */
  const control = (model, input, show, trait = "value") => {
    input.id = `figure-control-${(made += 1)}`;
    model.on(`change:${trait}`, show);
    show();
    return [make("label", { htmlFor: input.id }, model.get("description")), input];
  };

  const slider = (model) => {
    const input = make("input", { type: "range" });
    for (const name of ["min", "max", "step"]) input[name] = model.get(name) ?? 1;
    const digits = /\.(\d+)f/.exec(model.get("readout_format"))?.[1] ?? 0;
    const readout = make("output");
    input.addEventListener("input", () => model.set("value", input.valueAsNumber));
    const parts = control(model, input, () => {
      input.value = model.get("value");
      readout.value = model.get("value").toFixed(digits);
    });
    readout.htmlFor = input.id;
    return make("div", { className: "figure-control" }, ...parts, readout);
  };

  const dropdown = (model) => {
    const input = make("select");
    for (const text of model.get("_options_labels")) input.add(new Option(text, text));
    input.addEventListener("change", () => model.set("index", input.selectedIndex));
    const show = () => {
      input.selectedIndex = model.get("index");
    };
    return make("div", { className: "figure-control" }, ...control(model, input, show, "index"));
  };

  const checkbox = (model) => {
    const input = make("input", { type: "checkbox" });
    input.addEventListener("change", () => model.set("value", input.checked));
    const show = () => {
      input.checked = model.get("value");
    };
    return make("div", { className: "figure-check" }, ...control(model, input, show).reverse());
  };

  const box = async (model) =>
    make("div", {}, ...(await Promise.all(model.get("children").map((child) => view(find(child))))));

  const figure = async (model) => {
    const { default: widget } = await import(new URL(model.get("_module"), base));
    const place = make("div");
    await widget.initialize?.({ model });
    await new Promise((go) => setTimeout(go)); // let the page answer between reading and running
    await widget.render({ model, el: place });
    return place;
  };

  const MAKERS = {
    AnyModel: figure,
    BoxModel: box,
    CheckboxModel: checkbox,
    DropdownModel: dropdown,
    FloatSliderModel: slider,
    IntSliderModel: slider,
    VBoxModel: box,
  };

  const view = async (model) => {
    const element = await MAKERS[model.name](model);
    const layout = model.get("layout");
    for (const [name, value] of Object.entries(layout ? find(layout).state : {})) {
      if (typeof value === "string" && !name.startsWith("_")) {
        element.style.setProperty(name.replaceAll("_", "-"), value);
      }
    }
    return element;
  };

  /* Two traits that are one: what jslink joined. */
  const join = ([one, name], [other, twin]) => {
    const [source, target] = [find(one), find(other)];
    source.on(`change:${name}`, () => target.set(twin, source.get(name)));
    target.on(`change:${twin}`, () => source.set(name, target.get(twin)));
  };

  const read = () => {
    for (const tag of document.querySelectorAll(STATE)) {
      for (const [id, saved] of Object.entries(JSON.parse(tag.textContent).state)) {
        models.set(id, Object.assign(new Model(saved.state), { name: saved.model_name }));
      }
    }
    for (const model of models.values()) {
      if (model.name === "LinkModel") join(model.get("source"), model.get("target"));
    }
  };

  const enliven = async (tag, place) => {
    if (!models.size) read();
    place.append(await view(find(JSON.parse(tag.textContent).model_id)));
    tag.closest(".cell_output")?.classList.add("has-live-figure");
  };

  const watch = () => {
    // Every figure has its place from the start, so that a link may name it by its number.
    const waiting = new Map();
    const places = [...document.querySelectorAll(VIEW)].map((tag) => {
      const place = make("div", { className: "live-figure" });
      tag.before(place);
      waiting.set(place, tag);
      return place;
    });
    const start = (place) => {
      const tag = waiting.get(place);
      if (waiting.delete(place)) enliven(tag, place).catch((error) => console.error("figure:", error));
    };
    const linked = () => places[/^#lab=(\d+)\./.exec(location.hash)?.[1]];
    addEventListener("hashchange", () => start(linked()));
    linked()?.parentElement.scrollIntoView({ block: "center" });
    const near = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (!entry.isIntersecting) continue;
          near.unobserve(entry.target);
          for (const place of places) if (place.parentElement === entry.target) start(place);
        }
      },
      { rootMargin: "600px 0px" },
    );
    for (const outer of new Set(places.map((place) => place.parentElement))) near.observe(outer);
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", watch);
  else watch();
})();
