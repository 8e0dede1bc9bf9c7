// Where a table is wider than its box, the columns that say what a row is about stay while the others pass.
const MOST_HELD = 0.45;

function listenToHolding(tables) {
  const headings = new Map();
  for (const table of tables) headings.set(table, columnHeadings(table).slice(0, Number(table.dataset.axes)));
  const watcher = new ResizeObserver((changes) => {
    // First everything is looked at, then everything is changed: in turns, each look would lay out the page anew.
    const changed = changes.map((change) => change.target.querySelector("table"));
    const found = changed.map((table) => places(table, headings.get(table)));
    const cut = changed.map((table) => table.scrollWidth > table.parentElement.clientWidth + 1);
    changed.forEach((table, number) => hold(table, headings.get(table), found[number]));
    changed.forEach((table, number) => table.closest(".table").classList.toggle("cut", cut[number]));
  });
  for (const table of tables) watcher.observe(table.parentElement);
}

// How far from the left each of these columns begins; null where the table has room, or they would leave too little.
function places(table, headings) {
  const room = table.parentElement.clientWidth;
  const widths = headings.map((heading) => heading.getBoundingClientRect().width);
  const whole = widths.reduce((sum, width) => sum + width, 0);
  if (!headings.length || table.scrollWidth <= room + 1 || whole > MOST_HELD * room) return null;
  let left = 0;
  return widths.map((width) => (left += width) - width);
}

function hold(table, headings, found) {
  if (found === null && !table.classList.contains("held")) return;
  table.classList.toggle("held", found !== null);
  headings.forEach((heading, column) => {
    stay(heading, found, column);
    for (const row of table.tBodies[0].rows) stay(row.cells[column], found, column);
  });
}

function stay(cell, found, column) {
  cell.style.left = found ? `${found[column]}px` : "";
  cell.classList.toggle("stays", found !== null);
  cell.classList.toggle("edge", found !== null && column === found.length - 1);
}
