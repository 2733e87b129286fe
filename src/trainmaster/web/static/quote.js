"use strict";
// A point of the picture and its row are one thing: where one points, both are marked; a click on the point takes it.
const pointed = event => event.target.closest?.("[data-point]");
for (const kind of ["mouseover", "focusin"]) document.addEventListener(kind, event => {
  const point = pointed(event), box = point?.closest(".quote-choices");
  for (const each of document.querySelectorAll("[data-point]"))
    each.classList.toggle("is-seen", Boolean(box?.contains(each)) && each.dataset.point === point.dataset.point);
});
document.addEventListener("click", event => {
  const point = event.target.closest?.(".point"), row = point?.closest(".quote-choices").querySelector(`tr[data-point="${point.dataset.point}"]`);
  const take = row?.querySelector("a");
  if (take) take.click(); else row?.scrollIntoView({block: "nearest"});
});
