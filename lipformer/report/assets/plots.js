// Draws the charts when they come into sight, and keeps them in step: same stretch of x, same unit, same runs, and
// the colours of the reader's mode.
"use strict";
{
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const drawn = []; // of each chart: plot, and of a heat map its data too
  let unit = data.extent.tokens > 0 ? "tokens" : "steps";
  let stretch = [0, data.extent[unit]];
  let left = new Set(data.runs.keys()); // by the table's filter
  let off = new Set(); // by the legend
  let withPale = true; // whether pale curves are shown
  let linking = false;
  let copies = 0;

  const copy = (item, number) => JSON.parse(JSON.stringify(item).replace(/"p(\d+)"/g, `"p$1-${number}"`));

  // The layer that takes a plot's events: a thumb on it scrolls the page, and the tab key passes by, as keys do nothing.
  const calm = (box) => {
    const canvas = box.querySelector(".bk-Plot").shadowRoot.querySelector(".bk-Canvas");
    const layer = canvas.shadowRoot.querySelector(".bk-events");
    layer.tabIndex = -1;
    Object.assign(layer.style, { touchAction: "pan-y pinch-zoom", outline: "none" });
  };

  const draw = async (box) => {
    const heat = data.heatMaps[box.dataset.heat];
    const map = heat?.runs[box.dataset.place];
    const chart = data.charts[box.dataset.chart];
    const item = copy(heat ? data.empty.heatMap[heat.log] : data.empty.chart[chart.log], ++copies);
    const { attributes } = item.doc.roots[0];
    attributes.height = parseInt(box.style.minHeight, 10);
    if (matchMedia("(pointer: coarse)").matches) {
      attributes.toolbar.attributes.active_drag = null;
      attributes.toolbar_location = null;
    }
    const [{ model: plot }] = await Bokeh.embed.embed_item({ ...item, target_id: box.id });
    drawn.push({ plot, map });
    calm(box);
    if (heat) drawing.labelRows(plot, map, heat.scale);
    else drawing.drawCurves(plot, chart, data.runs, unit);
    for (const end of ["start", "end"]) plot.x_range.properties[end].change.connect(() => follow(plot.x_range));
    setUnit({ plot, map });
    setColours({ plot, map });
    showRuns();
    box.dataset.drawn = "";
  };

  // --- what all share ---

  const follow = (range) => {
    if (linking) return;
    linking = true;
    stretch = [range.start, range.end];
    for (const { plot } of drawn) if (plot.x_range !== range) plot.x_range.setv({ start: stretch[0], end: stretch[1] });
    linking = false;
  };

  const setUnit = ({ plot, map }) => {
    linking = true;
    const [start, end] = stretch;
    plot.x_range.setv({ start, end, reset_start: 0, reset_end: data.extent[unit] });
    linking = false;
    plot.below[0].axis_label = unit;
    plot.below[0].formatter.format = data.extent[unit] > 2e7 ? "0.[00]a" : "0,0";
    if (map) drawing.fillCells(plot, map, unit);
    else for (const renderer of plot.renderers) renderer.glyph.x = { field: unit };
  };

  const showRuns = () => {
    const shown = (run) => left.has(run) && !off.has(run);
    for (const { plot, map } of drawn) {
      if (!map) for (const renderer of plot.renderers) renderer.visible = shown(renderer.tags[0]) && (withPale || !renderer.tags[1]);
    }
    for (const element of document.querySelectorAll("[data-run]")) {
      const run = Number(element.dataset.run);
      element.hidden = "plot" in element.dataset ? !shown(run) : !left.has(run);
    }
    for (const button of document.querySelectorAll("[data-legend]")) {
      button.hidden = !left.has(Number(button.dataset.legend));
    }
  };

  // --- colours ---

  const isDark = () =>
    (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) ===
    "dark";

  const colour = (name) => {
    const probe = document.body.appendChild(document.createElement("span"));
    probe.style.color = `var(--${name})`;
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };

  const setColours = ({ plot, map }) => {
    const [muted, rule, grid] = ["muted", "rule", "grid"].map(colour);
    for (const axis of [...plot.below, ...plot.left]) {
      axis.setv({ major_label_text_color: muted, axis_label_text_color: muted, axis_line_color: rule });
      axis.major_tick_line_color = map && axis === plot.left[0] ? null : rule;
    }
    for (const part of plot.center) if ("grid_line_color" in part) part.grid_line_color = grid;
    if (map) return;
    for (const renderer of plot.renderers) {
      const { colours, dash } = data.runs[renderer.tags[0]];
      const tone = colours[isDark() ? 1 : 0];
      if (renderer.glyph.type === "Line") renderer.glyph.line_dash = dash;
      for (const name of ["line_color", "fill_color"]) {
        if (name in renderer.glyph) renderer.glyph[name] = tone;
      }
    }
  };

  const theme = document.getElementById("theme");
  const recolour = () => {
    theme.setAttribute("aria-pressed", String(isDark()));
    drawn.forEach(setColours);
  };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    recolour();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);

  // --- what the reader does ---

  for (const button of document.querySelectorAll("[data-unit]")) {
    button.addEventListener("click", () => {
      unit = button.dataset.unit;
      stretch = [0, data.extent[unit]];
      for (const other of document.querySelectorAll("[data-unit]")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      drawn.forEach(setUnit);
    });
  }
  for (const button of document.querySelectorAll("[data-legend]")) {
    button.addEventListener("click", () => {
      const run = Number(button.dataset.legend);
      if (!off.delete(run)) off.add(run);
      button.setAttribute("aria-pressed", String(!off.has(run)));
      showRuns();
    });
  }
  // Bokeh tells of what a mouse hovers over, and nothing of what a finger taps on: a tap becomes a mouse's move.
  document.addEventListener("click", (event) => {
    if (event.pointerType !== "touch" || !event.target.closest(".plot")) return;
    const { clientX, clientY } = event;
    const move = { clientX, clientY, view: window, pointerType: "mouse", isPrimary: true, bubbles: true, composed: true };
    event.composedPath()[0].dispatchEvent(new PointerEvent("pointermove", move));
  });
  // A legend of another form than a button for each run says how runs look, and which are hidden.
  document.addEventListener("runs-styled", (event) => {
    event.detail.forEach((style, run) => Object.assign(data.runs[run], style));
    drawn.forEach(setColours);
  });
  document.addEventListener("runs-hidden", (event) => {
    ({ off, withPale } = event.detail);
    showRuns();
  });
  document.addEventListener("runs-filtered", (event) => {
    left = event.detail;
    showRuns();
  });

  const watcher = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        watcher.unobserve(target);
        draw(target);
      }
    },
    { rootMargin: "600px" },
  );
  for (const box of document.querySelectorAll(".plot")) watcher.observe(box);
  recolour();
}
