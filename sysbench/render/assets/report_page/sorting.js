// Sorting by a column: up, down, and back to the order of the report.
const COLLATOR = new Intl.Collator("en", { numeric: true });
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

function listenToSorting(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  if (original.length < 2) return;
  const headings = columnHeadings(table);
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const direction = NEXT[heading.getAttribute("aria-sort")];
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", direction);
      body.classList.toggle("sorted", direction !== "none");
      body.append(...(direction === "none" ? original : sorted(original, column, direction === "descending")));
      say(direction === "none" ? "in the report's order" : `sorted by ${button.textContent.trim()}, ${direction}`);
    });
  });
}

// The heading of every column, left to right: with groups they stand in two rows.
function columnHeadings(table) {
  const [upper, lower] = table.tHead.rows;
  if (!lower) return [...upper.cells];
  const below = [...lower.cells];
  return [...upper.cells].flatMap((cell) => (cell.scope === "colgroup" ? below.splice(0, cell.colSpan) : [cell]));
}

// By numbers in full precision, then by words, then what is empty, whichever the direction. Equal rows keep their order.
function sorted(rows, column, descending) {
  const keyed = rows.map((row) => {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    const value = cell.dataset.value === undefined ? null : Number(cell.dataset.value);
    return { row, text, value, rank: value !== null ? 0 : text === "" || text === "—" ? 2 : 1 };
  });
  keyed.sort((one, other) => {
    if (one.rank !== other.rank) return one.rank - other.rank;
    const order = one.rank === 0 ? one.value - other.value : COLLATOR.compare(one.text, other.text);
    return descending ? -order : order;
  });
  return keyed.map((each) => each.row);
}
