// The list of contents: folded where it would stand in the way, and showing where one is.
function listenToContents() {
  const contents = document.querySelector(".contents");
  const fold = contents.querySelector("details");
  const narrow = matchMedia("(max-width: 1000px)");
  const refold = () => { fold.open = !narrow.matches; };
  refold();
  narrow.addEventListener("change", refold);
  contents.addEventListener("click", (event) => {
    if (narrow.matches && event.target.closest("a")) fold.open = false;
  });
  follow(contents);
}

// Marks the section in whose upper part the window stands.
function follow(contents) {
  const entries = new Map();
  for (const link of contents.querySelectorAll("a")) {
    entries.set(link.getAttribute("href").slice(1), link.parentElement);
  }
  const seen = new Set();
  const watcher = new IntersectionObserver((changes) => {
    for (const change of changes) change.isIntersecting ? seen.add(change.target.id) : seen.delete(change.target.id);
    let first = null;
    for (const [anchor, entry] of entries) {
      if (first === null && seen.has(anchor)) first = anchor;
      entry.classList.toggle("here", first === anchor);
    }
  }, { rootMargin: "0px 0px -70% 0px" });
  for (const anchor of entries.keys()) {
    const section = document.getElementById(anchor);
    if (section) watcher.observe(section);
  }
}
