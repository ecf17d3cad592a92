// Tables that can be sorted: a heading becomes a button, which sorts the rows of each part of its table.
// A second press sorts the other way, and a third one brings the first order back.
"use strict";

(function () {
  const DIRECTIONS = { none: "descending", descending: "ascending", ascending: "none" };

  function keyOf(row, column) {
    const cell = row.cells[column];
    if (column === 0) return cell.textContent.trim();
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  }

  // Values that are missing stay last in both directions; equal ones keep their order.
  function compare(one, other, direction) {
    if (one === null || other === null) return (one === null) - (other === null);
    const sign = direction === "ascending" ? 1 : -1;
    return typeof one === "string" ? -sign * one.localeCompare(other) : sign * (one - other);
  }

  function sort(body, column, direction) {
    body.rowsAtFirst ??= [...body.rows];
    const rows = [...body.rowsAtFirst];
    if (direction !== "none") {
      rows.sort((one, other) => compare(keyOf(one, column), keyOf(other, column), direction));
    }
    body.append(...rows);
  }

  function press(table, heading) {
    const direction = DIRECTIONS[heading.getAttribute("aria-sort") ?? "none"];
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    if (direction !== "none") heading.setAttribute("aria-sort", direction);
    for (const body of table.tBodies) sort(body, heading.cellIndex, direction);
  }

  function makeSortable(table) {
    const headings = [...table.tHead.rows].at(-1);
    for (const heading of headings.cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => press(table, heading));
      heading.append(button);
    }
  }

  for (const table of document.querySelectorAll("table.report")) {
    if ([...table.tBodies].some((body) => body.rows.length > 1)) makeSortable(table);
  }
})();
