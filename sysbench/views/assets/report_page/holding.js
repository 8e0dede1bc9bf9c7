// Where a table is wider than its box, the columns that say what a row is about stay while the others pass.
const MOST_HELD = 0.45;

function listenToHolding(table) {
  const box = table.parentElement;
  const axes = Number(table.dataset.axes);
  const headings = columnHeadings(table).slice(0, axes);
  if (!headings.length) return;
  new ResizeObserver(() => hold(table, box, headings)).observe(box);
}

function hold(table, box, headings) {
  let left = 0;
  const places = headings.map((heading) => {
    const place = left;
    left += heading.getBoundingClientRect().width;
    return place;
  });
  const held = table.scrollWidth > box.clientWidth + 1 && left < MOST_HELD * box.clientWidth;
  table.classList.toggle("held", held);
  for (const row of table.rows) {
    places.forEach((place, column) => {
      const cell = row.parentElement.tagName === "THEAD" ? headings[column] : row.cells[column];
      cell.style.left = held ? `${place}px` : "";
      cell.classList.toggle("stays", held);
    });
  }
}
