/* Typesets formulas with MathJax, once, where the book is built: a reader's browser has only glyphs to show.
   Reads {fonts, formulas: [{tex, display}]} from standard input; writes {html: [...], css} to standard output. */
"use strict";

const { readFileSync } = require("node:fs");
const { join } = require("node:path");

const folder = join(process.argv[2], "node-main.js");
const { fonts, formulas } = JSON.parse(readFileSync(0, "utf8"));

const main = async () => {
  const MathJax = await require(folder).init({
    loader: { load: ["adaptors/liteDOM", "input/tex", "output/chtml", "a11y/assistive-mml"] },
    // An unknown macro is an error to see, not red text.
    tex: { packages: { "[-]": ["noundefined"] } },
    chtml: { fontURL: fonts },
  });
  const { adaptor } = MathJax.startup;
  const html = [];
  for (const { tex, display } of formulas) {
    html.push(adaptor.outerHTML(await MathJax.tex2chtmlPromise(tex, { display })));
  }
  const css = adaptor.textContent(MathJax.chtmlStylesheet());
  process.stdout.write(JSON.stringify({ html, css }));
};

main().catch((error) => {
  console.error(String(error?.stack ?? error));
  process.exitCode = 1;
});
