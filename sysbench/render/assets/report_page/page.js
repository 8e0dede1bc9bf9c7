// Everything is on the page already; this adds sorting, copying and looking closer.
function say(what) {
  document.getElementById("said").textContent = what;
}

listenToTheme();
listenToContents();
for (const table of document.querySelectorAll(".table table")) listenToSorting(table);
for (const block of document.querySelectorAll(".table")) listenToCopying(block);
listenToHolding([...document.querySelectorAll(".table table")]);
listenToFigures();
listenToPrinting();
document.documentElement.dataset.ready = "yes";
