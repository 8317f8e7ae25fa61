"use strict";
// Points of a sweep and their front on a canvas, drawn in slices so that the page answers meanwhile.
window.windtunnelCloud = (() => {
  const card = document.getElementById("cloud");
  if (!card) return undefined;
  const canvas = document.getElementById("cloud-canvas"), up = document.getElementById("cloud-up");
  const SLICE = 1000, MARGIN = 34, { textOf, cleared, keepDrawn, colourOf } = window.windtunnel;
  let points = [], drawing = 0, places = [];
  const write = (at, value) => textOf(value * (at === 1 ? 2 ** 30 : 1), ["s", "B", ""][at]);

  // Of which no other is better in both: by step, ever less of the other.
  function front(of) {
    let least = Infinity;
    return [...points].sort((a, b) => a[0] - b[0] || a[of] - b[of]).filter((one) => one[of] < least && ((least = one[of]), true));
  }
  function draw() {
    const turn = ++drawing, of = Number(up.value), box = canvas.getBoundingClientRect();
    card.hidden = !points.length;
    if (!points.length) return;
    if (!box.width) { requestAnimationFrame(draw); return; }
    const pen = cleared(canvas, 300);
    let [low, high, bottom, top] = [Infinity, 0, Infinity, 0];
    for (const one of points) { low = Math.min(low, one[0]); high = Math.max(high, one[0]); bottom = Math.min(bottom, one[of]); top = Math.max(top, one[of]); }
    const x = (one) => MARGIN + (high > low ? (one[0] - low) / (high - low) : 0.5) * (box.width - 2 * MARGIN);
    const y = (one) => 300 - MARGIN - (top > bottom ? (one[of] - bottom) / (top - bottom) : 0.5) * (300 - 2 * MARGIN);
    const best = front(of);
    places = [];
    pen.fillStyle = colourOf("quiet");
    pen.font = "12px system-ui, sans-serif";
    pen.fillText(write(0, low), MARGIN, 292);
    pen.textAlign = "right";
    pen.fillText(write(0, high), box.width - MARGIN, 292);
    pen.textAlign = "left";
    pen.fillText(write(of, top), 4, 20);
    pen.fillText(write(of, bottom), 4, 300 - MARGIN + 14);
    const slice = (from) => {
      if (turn !== drawing) return; // a newer picture has begun
      pen.globalAlpha = 0.35;
      pen.fillStyle = colourOf("accent");
      for (const one of points.slice(from, from + SLICE)) { const at = [x(one), y(one), one]; places.push(at); pen.fillRect(at[0] - 2, at[1] - 2, 4, 4); }
      if (from + SLICE < points.length) { requestAnimationFrame(() => slice(from + SLICE)); return; }
      pen.globalAlpha = 1;
      pen.strokeStyle = pen.fillStyle = colourOf("alarm");
      pen.beginPath();
      for (const one of best) pen.lineTo(x(one), y(one));
      pen.stroke();
      for (const one of best) { pen.beginPath(); pen.arc(x(one), y(one), 4, 0, 7); pen.fill(); }
      canvas.dataset.drawn = String(points.length);
    };
    slice(0);
    document.getElementById("cloud-count").textContent = `${points.length.toLocaleString("en")} that fit`;
    const listed = best.slice(0, 20), parts = listed.map((one) => one[3].split(" · "));
    const shared = new Set(listed.length > 1 ? parts[0].filter((part) => parts.every((of) => of.includes(part))) : []);
    document.getElementById("cloud-front").replaceChildren(...listed.map((one, i) => {
      const row = document.createElement("tr"), head = document.createElement("td"), link = document.createElement("a");
      head.className = "text";
      link.href = `/?${one[4]}`;
      link.textContent = parts[i].filter((part) => !shared.has(part)).join(" · ") || one[3] || "this point"; // where they differ
      head.append(link);
      row.append(head, ...[0, 1, 2].map((at) => Object.assign(document.createElement("td"), { textContent: write(at, one[at]) })));
      return row;
    }));
  }
  const nearest = (event) => {
    let found = null, least = 15 ** 2;
    for (const [x, y, one] of places) {
      const far = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (far < least) { least = far; found = one; }
    }
    return found;
  };
  canvas.addEventListener("pointermove", (event) => {
    const one = nearest(event);
    canvas.style.cursor = one ? "pointer" : "";
    if (one) canvas.dataset.tip = `${one[3]}: ${write(0, one[0])}, ${write(1, one[1])}, ${write(2, one[2])} GPU-hours per million tokens`;
    else delete canvas.dataset.tip;
  });
  canvas.addEventListener("click", (event) => { const one = nearest(event); if (one) location.href = `/?${one[4]}`; });
  up.addEventListener("change", draw);
  keepDrawn(canvas, draw);
  return {
    add(more) { points = points.concat(more); draw(); },
    clear() { points = []; },
    async load() { const answer = await fetch(card.dataset.points); if (answer.ok) { points = await answer.json(); draw(); } },
  };
})();
