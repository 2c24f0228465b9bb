// Sorts and filters the table of runs. By hand: it is shorter than a table library's configuration, and those weigh
// more than the charts do.
"use strict";
{
  const table = document.getElementById("runs");
  const rows = [...table.tBodies[0].rows];
  const headers = [...table.tHead.rows[0].cells];

  // Numbers rise up to inf; after them, whichever way is sorted, come nan and then what is missing.
  const rank = (cell) => {
    const number = Number(cell.dataset.key);
    return cell.dataset.key === "" ? [2, 0] : Number.isNaN(number) ? [1, 0] : [0, number];
  };
  const compareNumbers = (a, b, sign) => {
    const [placeA, numberA] = rank(a);
    const [placeB, numberB] = rank(b);
    if (placeA !== placeB) return placeA - placeB;
    return numberA === numberB ? 0 : sign * (numberA < numberB ? -1 : 1); // inf - inf would be nan
  };
  const compareTexts = (a, b, sign) =>
    sign * a.textContent.trim().localeCompare(b.textContent.trim(), "en", { numeric: true });

  headers.forEach((header, place) => {
    header.querySelector("button").addEventListener("click", () => {
      const sign = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headers.forEach((other) => other.setAttribute("aria-sort", "none"));
      header.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const compare = header.classList.contains("number") ? compareNumbers : compareTexts;
      rows.sort((a, b) => compare(a.cells[place], b.cells[place], sign));
      table.tBodies[0].append(...rows);
    });
  });

  const filter = document.getElementById("filter");
  const status = document.getElementById("status");
  const apply = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const left = new Set();
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word)) || (status.value && row.dataset.status !== status.value);
      if (!row.hidden) left.add(Number(row.dataset.row));
    }
    document.getElementById("count").textContent = `${left.size} of ${rows.length} ${table.dataset.noun}`;
    document.dispatchEvent(new CustomEvent("runs-filtered", { detail: left }));
  };
  filter.addEventListener("input", apply);
  status.addEventListener("change", apply);
  apply();
}
