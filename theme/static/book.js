/* What scrolls can be reached with the keyboard, also where it is opened or made narrow after the theme
   has looked for it. */
(() => {
  "use strict";
  const reach = new ResizeObserver((entries) => {
    const wide = entries.map((entry) => entry.target).filter((e) => e.scrollWidth > e.clientWidth);
    for (const element of wide) element.tabIndex = 0;
  });
  const kinds =
    "main :is(pre, mjx-container[display], div.math, .cell_output > .output, .pst-scrollable-table-container)";
  for (const element of document.querySelectorAll(kinds)) reach.observe(element);
})();
