// The map of a sweep: a panel for each value of one key, or without a key for y, lines of the score against x.
"use strict";
if (document.getElementById("map")) {
  const { maps, keys, stops } = JSON.parse(document.getElementById("report-data").textContent).sweep;
  const pick = (name) => document.getElementById(`map-${name}`);
  const [xPick, yPick, panelPick, taskPick] = ["x", "y", "panel", "task"].map(pick);
  const tip = document.getElementById("tip");
  const MOST = 12; // panels or lines
  let map = maps[0];

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const drawn = (name, attributes = {}, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  // --- what is told of a cell ---

  let described = null; // the element that the tooltip is of
  const place = () => {
    const box = described.getBoundingClientRect();
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    const below = box.bottom + 6 + height < innerHeight || box.top < height + 6;
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - width - 8))}px`;
    tip.style.top = `${below ? box.bottom + 6 : box.top - height - 6}px`;
  };
  const tell = (target, told) => {
    const rows = told.flatMap(([label, text]) => [element("dt", {}, label), element("dd", {}, text)]);
    tip.replaceChildren(element("dl", {}, ...rows));
    tip.hidden = false;
    described = target;
    place();
  };
  const hide = () => {
    tip.hidden = true;
    described = null;
  };
  const tells = (target, told) => {
    target.setAttribute("aria-describedby", "tip");
    for (const event of ["pointerenter", "focus"]) target.addEventListener(event, () => tell(target, told));
    for (const event of ["pointerleave", "blur"]) target.addEventListener(event, hide);
  };
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  // A focus from the keyboard scrolls its element into sight: the tooltip goes with it.
  document.addEventListener("scroll", () => described && place(), { capture: true, passive: true });

  // --- cells: the best setting of each comes first ---

  const keyOf = (place) => keys[map.keys[place]];
  const placeOf = (setting, axis) => (axis === null ? 0 : keyOf(axis).places[setting.at[axis]]);
  const namesOf = (axis) => (axis === null ? [""] : keyOf(axis).placeNames);
  const cellsOf = (axes) => {
    const cells = new Map();
    for (const setting of map.settings) {
      const place = axes.map((axis) => placeOf(setting, axis)).join();
      if (!cells.has(place)) cells.set(place, []);
      cells.get(place).push(setting);
    }
    return cells;
  };
  const lost = (cell) => cell.reduce((sum, { counts }) => sum + (counts.diverged ?? 0), 0);
  const told = (cell) => {
    if (cell.length === 1) return cell[0].told;
    const diverged = cell.filter(({ state }) => state === "diverged").length;
    const more = `the best of ${cell.length} settings here` + (diverged ? `; ${diverged} diverged` : "");
    return [["shown", more], ...cell[0].told];
  };

  const [low, high, above] = [0, 1, 2].map((i) => () => map.ends[i]);
  const share = (value) => Math.min(1, Math.max(0, (value - low()) / (high() - low())));
  const tone = (value) => stops[Math.round(share(value) * (stops.length - 1))];
  const on = (colour) => {
    const light = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] > 0.179 ? "#000000" : "#ffffff";
  };

  const WORDS = { diverged: "✕ diverged", failed: "! failed" };
  const cellButton = (cell) => {
    const [{ state, value, text, best, counts, total }] = cell;
    const known = ["scored", "so_far", "diverged", "failed", "waiting", "running"].includes(state);
    const button = element("button", { type: "button", class: known ? state : "other" });
    if (value === null) button.append(WORDS[state] ?? state);
    else {
      button.style.setProperty("--tone", tone(value));
      button.style.setProperty("--on", on(tone(value)));
      button.append(`${best ? "★ " : ""}${text}${state === "so_far" ? " …" : ""}`);
      if (best) button.classList.add("best-cell");
      const notes = [];
      if (counts.diverged) notes.push(`✕ ${counts.diverged} of ${total} diverged`);
      if (counts.failed) notes.push(`! ${counts.failed} of ${total} failed`);
      if (notes.length) button.append(element("small", {}, notes.join(", ")));
    }
    tells(button, told(cell));
    return button;
  };

  const panel = (cells, x, y, place, caption) => {
    const [columns, rows] = [namesOf(x), namesOf(y)];
    const head = element("tr", {}, element("th", { class: "axis" }, `${keyOf(y).name} ↓ ${keyOf(x).name} →`));
    for (const name of columns) head.append(element("th", { scope: "col" }, name));
    const body = element("tbody");
    rows.map((name, j) => [name, j]).reverse().forEach(([name, j]) => {
      const row = element("tr", {}, element("th", { scope: "row" }, name));
      columns.forEach((_, i) => {
        const cell = cells.get([i, j, place].join());
        row.append(element("td", {}, ...(cell ? [cellButton(cell)] : [])));
      });
      body.append(row);
    });
    const table = element("table", { class: "map" }, element("thead", {}, head), body);
    const box = element("div", { class: "scroll" }, table);
    return element("figure", {}, ...(caption ? [element("figcaption", {}, caption)] : []), box);
  };

  // --- lines: mean over seeds, smallest to largest, each seed, and crosses for what diverged ---

  const [WIDTH, HEIGHT, LEFT, TOP, FOOT] = [720, 320, 64, 26, 44];
  const ticks = () => {
    const step = 10 ** Math.floor(Math.log10((high() - low()) / 4));
    const wide = [1, 2, 5, 10].map((k) => k * step).find((k) => (high() - low()) / k <= 6);
    const found = [];
    for (let i = Math.ceil(low() / wide); i * wide <= high(); i++) found.push(i * wide);
    return found.map((tick) => Number(tick.toPrecision(6)));
  };
  const yOf = (value) => HEIGHT - FOOT - (1 - 0.06) * (HEIGHT - FOOT - TOP) * share(value) - 0.02 * HEIGHT;
  const xOf = (i, count) => LEFT + ((i + 0.5) / count) * (WIDTH - LEFT - 8);
  const cross = (x, y) => drawn("path", { class: "cross", d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10` });

  const dot = (cell, x) => {
    const [{ value, scores, best, counts }] = cell;
    const group = drawn("g", { tabindex: 0 });
    const top = TOP - 10;
    if (value !== null) {
      if (scores.length > 1) {
        const [from, to] = [Math.min(...scores), Math.max(...scores)].map(yOf);
        group.append(drawn("line", { x1: x, x2: x, y1: from, y2: to }));
        for (const score of scores) group.append(drawn("circle", { class: "seed", cx: x, cy: yOf(score), r: 3 }));
      }
      group.append(drawn("circle", { cx: x, cy: yOf(value), r: 4.5 }));
      if (best) group.append(drawn("text", { class: "star", x, y: yOf(value) - 9, "text-anchor": "middle" }, "★"));
    }
    if (counts.diverged || (value === null && lost(cell))) group.append(cross(x, top));
    else if (value === null) group.append(drawn("text", { x, y: top + 4, "text-anchor": "middle" }, cell[0].state));
    group.append(drawn("circle", { class: "target", cx: x, cy: value === null ? top : yOf(value), r: 11 }));
    group.setAttribute("aria-label", told(cell).map(([label, text]) => `${label} ${text}`).join("; "));
    tells(group, told(cell));
    return group;
  };

  const lines = (cells, x, line) => {
    const [columns, names] = [namesOf(x), namesOf(line)];
    const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `best valid against ${keyOf(x).name}` });
    for (const tick of ticks()) {
      svg.append(drawn("line", { class: "grid-line", x1: LEFT, x2: WIDTH - 8, y1: yOf(tick), y2: yOf(tick) }));
      svg.append(drawn("text", { x: LEFT - 6, y: yOf(tick) + 4, "text-anchor": "end" }, String(tick)));
    }
    columns.forEach((name, i) => {
      svg.append(drawn("text", { x: xOf(i, columns.length), y: HEIGHT - FOOT + 18, "text-anchor": "middle" }, name));
    });
    svg.append(drawn("text", { x: (WIDTH + LEFT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, keyOf(x).name));
    const legend = element("ul", { class: "lines-legend" });
    names.forEach((name, k) => {
      const at = line === null ? 0 : keyOf(line).places.indexOf(k);
      const [light, dark] = line === null ? ["#0072B2", "#4FB0E8"] : keyOf(line).colours[at];
      const group = drawn("g", { class: "tone", style: `--light:${light};--dark:${dark}` });
      const shift = names.length < 2 ? 0 : ((k / (names.length - 1) - 0.5) * 22 * Math.min(1, 6 / columns.length));
      const found = columns.map((_, i) => cells.get([i, 0, k].join()));
      const places = found.map((cell, i) => cell && cell[0].value !== null && [xOf(i, columns.length) + shift, yOf(cell[0].value)]);
      const path = keyOf(x).numeric ? places.filter(Boolean).map((at) => at.join(" ")).join("L") : "";
      if (path) group.append(drawn("path", { d: `M${path}` }));
      found.forEach((cell, i) => cell && group.append(dot(cell, xOf(i, columns.length) + shift)));
      svg.append(group);
      if (line !== null) {
        const swatch = drawn("svg", { class: "swatch", width: 28, height: 10, "aria-hidden": "true", style: `--light:${light};--dark:${dark}` },
          drawn("line", { x1: 0, y1: 5, x2: 28, y2: 5, "stroke-width": 3 }));
        legend.append(element("li", {}, swatch, ` ${keyOf(line).name} ${name}`));
      }
    });
    return element("div", { class: "lines" }, legend, svg);
  };

  // --- what the reader chooses ---

  const number = (select) => (select.value === "" ? null : Number(select.value));
  const show = () => {
    hide();
    const axes = [number(xPick), number(yPick), number(panelPick)];
    const [x, y, by] = axes;
    const cells = cellsOf(axes);
    const settings = Math.max(...[...cells.values()].map((cell) => cell.length));
    const seeds = map.settings.some(({ total }) => total > 1);
    const rest = map.keys.map((_, i) => i).filter((i) => !axes.includes(i)).map((i) => keyOf(i).name);
    const of = seeds ? "mean over the seeds that finished" : "best on valid";
    pick("about").textContent = `${map.unit}, ${of}` + (settings > 1 ? `; each place shows its best setting` + (rest.length ? ` over ${rest.join(", ")}` : "") : "");
    if (y === null) pick("about").textContent += ". Bars: smallest to largest; ★ best; ✕ above: a job diverged";
    pick("panel-name").textContent = y === null ? "lines" : "panel";
    pick("scale").hidden = y === null || map.settings.every(({ value }) => value === null);
    pick("scale").querySelector(".ramp").style.setProperty("--stops", stops.join());
    const ends = [low(), (low() + high()) / 2, high()].map((value) => value.toPrecision(4));
    if (above()) ends[2] = `${ends[2]} and above`;
    pick("scale").querySelector(".ends").replaceChildren(...ends.map((end) => element("span", {}, end)));
    const panels = y === null ? [lines(cells, x, by)] : namesOf(by).map((name, k) => panel(cells, x, y, k, by === null ? "" : `${keyOf(by).name} ${name}`));
    pick("panels").replaceChildren(...panels);
  };

  const fill = () => {
    const options = (select, chosen, allowed, none) => {
      const found = map.keys.map((_, i) => i).filter(allowed);
      const made = found.map((i) => element("option", { value: i }, keyOf(i).name));
      if (none) made.unshift(element("option", { value: "" }, none));
      select.replaceChildren(...made);
      select.value = chosen === null ? "" : String(chosen);
      select.closest("label").hidden = made.length < 2;
    };
    options(xPick, map.axes[0], () => true, "");
    options(yPick, map.axes[1], (i) => i !== number(xPick), "best valid");
    options(panelPick, map.axes[2], (i) => ![number(xPick), number(yPick)].includes(i) && keyOf(i).placeNames.length <= MOST, "none");
    show();
  };
  const choose = () => {
    const [x, y, by] = [number(xPick), number(yPick), number(panelPick)];
    map.axes = [x, y === x ? null : y, by === x || by === y ? null : by];
    fill();
  };
  for (const select of [xPick, yPick, panelPick]) select.addEventListener("change", choose);
  taskPick?.addEventListener("change", () => {
    map = maps[Number(taskPick.value)];
    fill();
  });
  fill();
}
