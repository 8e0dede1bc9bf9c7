// Everything is on the page already; this adds sorting, copying and looking closer.
function say(what) {
  document.getElementById("said").textContent = what;
}

listenToTheme();
listenToContents();
for (const block of document.querySelectorAll(".table")) {
  listenToHolding(block.querySelector("table"));
  listenToSorting(block.querySelector("table"));
  listenToCopying(block);
}
listenToFigures();
listenToPrinting();
document.documentElement.dataset.ready = "yes";
