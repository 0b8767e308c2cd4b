// Before the first paint, so that the page never flashes in the other colours.
const chosen = localStorage.getItem("warmroute.theme");
if (chosen) document.documentElement.dataset.theme = chosen;
