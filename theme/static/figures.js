/* Brings the interactive figures of a page to life, and only there: the three scripts they need
   (require.js, the widget manager, anywidget) are loaded when the first figure comes near the
   viewport. A still picture in the same output holds the figure's place until it is alive. */
(() => {
  "use strict";
  const STATE = 'script[type="application/vnd.jupyter.widget-state+json"]';
  const VIEW = 'script[type="application/vnd.jupyter.widget-view+json"]';
  const base = new URL("widgets/", document.currentScript.src);

  const load = (name) =>
    new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL(name, base).href;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${name} could not be loaded`));
      document.head.append(script);
    });

  const ask = (name) => new Promise((resolve, reject) => window.requirejs([name], resolve, reject));

  let models; // a promise of the manager and the page's models, made once

  /* ipywidgets asks version 2 of MathJax to typeset its labels; the page has version 3. */
  const translateMathJax = () => {
    const { MathJax } = window;
    if (!MathJax?.startup) return;
    MathJax.Hub = {
      Queue: ([, , element]) =>
        MathJax.startup.promise.then(() => MathJax.typesetPromise([element])),
    };
  };

  const start = async () => {
    translateMathJax();
    await load("require.js");
    window.requirejs.config({ baseUrl: base.href });
    await load("html-manager.js");
    const { HTMLManager } = await ask("@jupyter-widgets/html-manager");
    const manager = new HTMLManager({ loader: ask });
    const found = new Map();
    for (const tag of document.querySelectorAll(STATE)) {
      for (const model of await manager.set_state(JSON.parse(tag.textContent))) {
        found.set(model.model_id, model);
      }
    }
    return { manager, found };
  };

  /* ipywidgets leaves slider handles and icon buttons without names: a handle takes that of its
     label, a button that of its icon. */
  const giveNames = (element) => {
    for (const handle of element.querySelectorAll(".noUi-handle:not([aria-label])")) {
      const label = handle.closest(".widget-slider, .jupyter-widgets")?.querySelector("label");
      handle.setAttribute("aria-label", label?.textContent.trim() || "value");
    }
    for (const button of element.querySelectorAll(".jupyter-button:not([aria-label])")) {
      const icon = button.querySelector("i")?.className.match(/fa-([a-z-]+)/);
      if (icon && !button.textContent.trim()) {
        button.setAttribute("aria-label", button.title || icon[1].replaceAll("-", " "));
      }
    }
  };

  const enliven = async (tag) => {
    models ??= start();
    const { manager, found } = await models;
    const model = found.get(JSON.parse(tag.textContent).model_id);
    if (!model) throw new Error("the page does not hold the state of this figure");
    const place = document.createElement("div");
    place.className = "live-figure";
    tag.before(place);
    await manager.display_view(await manager.create_view(model), place);
    giveNames(place);
    new MutationObserver(() => giveNames(place)).observe(place, { childList: true, subtree: true });
    tag.closest(".cell_output")?.classList.add("has-live-figure");
  };

  const watch = () => {
    const near = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (!entry.isIntersecting) continue;
          near.unobserve(entry.target);
          for (const tag of entry.target.querySelectorAll(VIEW)) {
            enliven(tag).catch((error) => console.error("figure:", error));
          }
        }
      },
      { rootMargin: "600px 0px" },
    );
    const places = new Set([...document.querySelectorAll(VIEW)].map((tag) => tag.parentElement));
    for (const place of places) near.observe(place);
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", watch);
  else watch();
})();
