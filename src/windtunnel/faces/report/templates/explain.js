"use strict";
// Moves the tooltip: elements say what it shows in `data-tip`.
const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
  tip.hidden = !target;
  if (!target) return;
  tip.textContent = target.getAttribute("data-tip");
  const box = tip.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const y = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18;
  tip.style.transform = `translate(${Math.max(8, x)}px, ${Math.max(8, y)}px)`;
});
document.addEventListener("pointerleave", () => { tip.hidden = true; });
