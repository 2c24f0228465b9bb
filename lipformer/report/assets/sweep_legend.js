// The legend of a sweep's curves: one key has the colours, another the dashes, and a value hides and shows its jobs.
"use strict";
{
  const { runs, sweep } = JSON.parse(document.getElementById("report-data").textContent);
  const { keys, at, curves, dashes } = sweep;
  const colourPick = document.getElementById("colour-key");
  const dashPick = document.getElementById("dash-key");
  const legend = document.getElementById("legend");
  const paleButton = document.getElementById("pale");
  const divergedButton = document.getElementById("diverged");
  const plain = runs[0].colours;
  const neutral = ["#57606a", "#9fa8b2"]; // of a dash that goes with all colours
  const off = new Map(); // by the name of a key, the numbers of its values that are hidden
  let withPale = sweep.pale;
  let withDiverged = true;

  const numberOf = (select) => keys.findIndex(({ name }) => name === select?.value);
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const restyle = (swatch, { colours, dash }) => {
    swatch.style.setProperty("--light", colours[0]);
    swatch.style.setProperty("--dark", colours[1]);
    swatch.querySelector("line").setAttribute("stroke-dasharray", dash.join(" "));
  };

  const styleOf = (run, colour, dash) => {
    const [shade, stroke] = [colour, dash].map((key) => (key < 0 ? null : at[run][key]));
    return {
      colours: shade === null ? plain : keys[colour].colours[shade],
      dash: stroke === null ? [] : dashes[stroke % dashes.length],
    };
  };

  const hide = () => {
    const isOff = (run) =>
      (!withDiverged && sweep.diverged.includes(run)) || keys.some(({ name }, key) => off.get(name)?.has(at[run][key]));
    const hidden = new Set(curves.filter(isOff));
    paleButton?.setAttribute("aria-pressed", String(withPale));
    divergedButton?.setAttribute("aria-pressed", String(withDiverged));
    document.dispatchEvent(new CustomEvent("runs-hidden", { detail: { off: hidden, withPale } }));
  };

  const entry = (key, value, style) => {
    const { name, values } = keys[key];
    const button = document.createElement("button");
    button.type = "button";
    button.title = `show or hide ${name}=${values[value]}`;
    const swatch = svg("svg", { class: "swatch", viewBox: "0 0 28 10", width: 28, height: 10, "aria-hidden": "true" });
    swatch.append(svg("line", { x1: 0, y1: 5, x2: 28, y2: 5, "stroke-width": 3 }));
    restyle(swatch, style);
    const text = document.createElement("span");
    text.textContent = `${name} ${values[value]}`;
    button.append(swatch, text);
    const press = () => button.setAttribute("aria-pressed", String(!off.get(name).has(value)));
    button.addEventListener("click", () => {
      if (!off.get(name).delete(value)) off.get(name).add(value);
      press();
      hide();
    });
    press();
    return button;
  };

  const show = () => {
    const [colour, dash] = [numberOf(colourPick), numberOf(dashPick)];
    const styles = runs.map((_, run) => styleOf(run, colour, dash));
    document.querySelectorAll("#runs tbody tr").forEach((row) => {
      restyle(row.querySelector(".swatch"), styles[row.dataset.row]);
    });
    document.dispatchEvent(new CustomEvent("runs-styled", { detail: styles }));
    if (!legend) return;
    const parts = [];
    for (const key of new Set([colour, dash].filter((key) => key >= 0))) {
      const { name } = keys[key];
      if (!off.has(name)) off.set(name, new Set());
      const shown = [...new Set(curves.map((run) => at[run][key]))].filter((value) => value !== null).sort((a, b) => a - b);
      for (const value of shown) {
        const colours = key === colour ? keys[key].colours[value] : neutral;
        parts.push(entry(key, value, { colours, dash: key === dash ? dashes[value % dashes.length] : [] }));
      }
    }
    for (const name of off.keys()) if (![colour, dash].some((key) => keys[key]?.name === name)) off.delete(name);
    legend.replaceChildren(...parts);
    hide();
  };

  if (colourPick) {
    const few = [...colourPick.options].map(({ value }) => keys.findIndex(({ name }) => name === value));
    const first = (name) => few.find((key) => keys[key].name === name) ?? few.find((key) => !keys[key].numeric) ?? few[0];
    colourPick.value = keys[first("attention")].name;
    const others = [...dashPick.options].map(({ value }) => value).filter((name) => name && name !== colourPick.value && name !== "seed");
    dashPick.value = others.includes("lr") ? "lr" : (others[0] ?? "");
    for (const select of [colourPick, dashPick]) select.addEventListener("change", show);
  }
  paleButton?.addEventListener("click", () => {
    withPale = !withPale;
    hide();
  });
  divergedButton?.addEventListener("click", () => {
    withDiverged = !withDiverged;
    hide();
  });
  show();
}
