// What is drawn into the empty charts and heat maps that Bokeh's Python has laid out.
"use strict";
const drawing = (() => {
  const model = (name, attributes) => new (Bokeh.Models.get(name))(attributes);
  const DOTTED = 30; // a curve of at most so many values shows each as a dot

  const sums = (differences) => {
    let sum = 0;
    return differences.map((difference) => (sum += difference));
  };
  const hovers = (plot) => plot.toolbar.tools.filter(({ type }) => type === "HoverTool");
  const decode = (value) => (typeof value === "number" ? value : Number(value.replace("inf", "Infinity")));

  // Draws the curves of one chart: every run's, and where a run's values stop being finite, a cross.
  const drawCurves = (plot, chart, runs, unit) => {
    const renderers = [];
    const answering = { curve: [], pale: [], cross: [] }; // renderers that answer to the pointer
    for (const { run, what, pale, steps, tokens, values } of chart.curves) {
      const numbers = values.map(decode);
      const shown = numbers.map((value) => (Number.isFinite(value) && (value > 0 || !chart.log) ? value : NaN));
      const columns = { steps: sums(steps), tokens: tokens.length ? sums(tokens) : steps.map(() => NaN), values: shown };
      const source = model("ColumnDataSource", { data: columns });
      const add = (kind, look, data_source = source) => {
        const glyph = model(kind, { x: { field: unit }, y: { field: "values" }, ...look });
        renderers.push(model("GlyphRenderer", { data_source, glyph, name: runs[run].name, tags: [run, pale] }));
        return renderers.at(-1);
      };
      const alpha = pale ? 0.5 : 1;
      add("Line", { line_alpha: alpha, line_width: pale ? 1.5 : 2, line_dash: runs[run].dash });
      if (values.length <= DOTTED) add("Scatter", { size: pale ? 4 : 5, fill_alpha: alpha, line_alpha: 0 });
      const breaks = [...shown.keys()].filter((i) => i && !Number.isFinite(numbers[i]) && !Number.isNaN(shown[i - 1]));
      if (breaks.length) {
        const at = (column) => breaks.map((i) => column[i]);
        const data = { steps: at(columns.steps), tokens: at(columns.tokens), what: at(values) };
        data.values = breaks.map((i) => shown[i - 1]);
        answering.cross.push(add("Scatter", { marker: "x", size: 11, line_width: 2.5 }, model("ColumnDataSource", { data })));
      }
      // A thin line is hard to hit, above all with a thumb: these are as wide as it takes, and are not seen.
      const targets = answering[pale ? "pale" : "curve"];
      targets.push(add("Line", { line_width: 16, line_alpha: 0 }));
      if (values.length === 1) targets.push(add("Scatter", { size: 16, line_alpha: 0, fill_alpha: 0 }));
      for (const tool of hovers(plot)) {
        if (tool.name === (pale ? "pale" : "curve")) tool.tooltips = tool.tooltips.replace(">value<", `>${what}<`);
      }
    }
    plot.renderers = renderers;
    for (const tool of hovers(plot)) tool.renderers = answering[tool.name];
  };

  // Fills a heat map: a cell covers the stretch from the value before to its own; what is not finite is hatched.
  const fillCells = (plot, map, unit) => {
    const ends = map[unit];
    const begins = ends.map((end, i) => (i > 0 ? ends[i - 1] : Math.max(0, 2 * end - (ends[1] ?? 2 * end))));
    const columns = () => ({ x: [], width: [], y: [], values: [], layer: [], step: [], tokens: [], text: [] });
    const parts = { cells: columns(), marked: { ...columns(), hatch: [] } };
    map.values.forEach((row, j) => {
      row.forEach((value, i) => {
        if (value === null || ends[i] === null) return;
        const into = parts[typeof value === "number" ? "cells" : "marked"];
        into.x.push((begins[i] + ends[i]) / 2);
        into.width.push(ends[i] - begins[i]);
        into.y.push(map.layers.length - j - 0.5);
        into.values.push(decode(value));
        into.layer.push(map.layers[j]);
        into.step.push(map.steps[i]);
        into.tokens.push(map.tokens[i] ?? NaN);
        into.text.push(typeof value === "number" ? String(Number(value.toPrecision(4))) : value);
        into.hatch?.push(value === "nan" ? "x" : "/");
      });
    });
    for (const renderer of plot.renderers) renderer.data_source.data = parts[renderer.name];
    for (const tool of hovers(plot)) tool.renderers = plot.renderers.filter(({ name }) => name === tool.name);
  };

  // Names the rows of a heat map by their layers, the first on top, and sets its scale of colours.
  const labelRows = (plot, map, [low, high]) => {
    const count = map.layers.length;
    const ending = map.layers.every((layer) => layer.endsWith(".branch")) ? ".branch" : "";
    const label = (layer) => layer.replace(/^blocks\./, "").replace(ending, "");
    const ticks = map.layers.map((_, j) => count - j - 0.5);
    plot.y_range.setv({ start: 0, end: count, reset_start: 0, reset_end: count });
    plot.left[0].ticker.ticks = ticks;
    plot.left[0].major_label_overrides = new Map(map.layers.map((layer, j) => [ticks[j], label(layer)]));
    plot.renderers.find(({ name }) => name === "cells").glyph.fill_color.transform.setv({ low, high });
  };

  return { drawCurves, fillCells, labelRows };
})();
