"use strict";
// Heat maps of ranks: columns of fields (a host's GPUs, a replica's stages), wrapped into lines that fill the width.
window.windtunnel.heatmap = () => {
  const { showTip, hideTip, duration } = window.windtunnel;
  const heat = JSON.parse(document.getElementById("data").textContent).heat;
  if (!heat) return;
  let ranks = 0;
  for (let i = 1; i < heat.runs.length; i += 2) ranks += heat.runs[i];
  const classOf = new Int32Array(ranks);
  for (let i = 0, at = 0; i < heat.runs.length; i += 2) {
    classOf.fill(heat.runs[i], at, at + heat.runs[i + 1]);
    at += heat.runs[i + 1];
  }
  const busy = heat.waiting.map((waiting) => 1 - waiting / heat.makespan);
  const texts = (rank) => (heat.by[classOf[rank]] || []).map((i) => heat.texts[i]);
  const SHADES = 96;
  let palette = [], mark = "";

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(`--${name}`).trim();
    const stops = [0, 1, 2, 3, 4].map((i) => [1, 3, 5].map((at) => parseInt(get(`heat-${i}`).slice(at, at + 2), 16)));
    palette = Array.from({ length: SHADES }, (_, shade) => {
      const place = shade / (SHADES - 1) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
      const mixed = stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * (place - low)));
      return `rgb(${mixed.join(",")})`;
    });
    mark = get("mark");
  }
  const shadeOf = (share) =>
    Math.max(0, Math.min(SHADES - 1, Math.round((share - heat.low) / (heat.high - heat.low) * (SHADES - 1))));

  // fields: {columns, rows, value(column, row) -> share or -1, marked(column, row), tip(column, row)}
  function map(canvas, fields) {
    const pen = canvas.getContext("2d");
    const edge = 2;  // room for an outline
    let size = 0, wide = 0, across = 0, lineHeight = 0, width = 0;
    const gap = () => Math.max(3, Math.min(8, size));
    function measure() {
      const room = fields.rows > 24 ? 640 : 440;
      for (size = 22; size >= 1; size--) {
        across = Math.max(1, Math.floor((width - 2 * edge) / size));
        lineHeight = fields.rows * size + gap();
        if (size === 1 || Math.ceil(fields.columns / across) * lineHeight <= room) break;
      }
      // A map of one line may stretch to the width.
      wide = fields.columns <= across ? Math.min(3 * size, Math.floor((width - 2 * edge) / fields.columns)) : size;
    }
    const left = (column) => edge + (column % across) * wide;
    const top = (column, row) => edge + Math.floor(column / across) * lineHeight + row * size;
    function draw() {
      width = canvas.clientWidth;
      measure();
      const ratio = devicePixelRatio || 1, height = Math.ceil(fields.columns / across) * lineHeight - gap() + 2 * edge;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      const inset = size >= 5 ? 1 : 0, marked = [];
      let drawn = 0, last = -1;
      for (let column = 0; column < fields.columns; column++) {
        for (let row = 0; row < fields.rows; row++) {
          const share = fields.value(column, row);
          if (share < 0) continue;
          const shade = shadeOf(share);
          if (shade !== last) { pen.fillStyle = palette[shade]; last = shade; }
          pen.fillRect(left(column), top(column, row), wide - inset, size - inset);
          drawn++;
          if (fields.marked(column, row)) marked.push([column, row, shade]);
        }
      }
      for (const [column, row, shade] of marked) {
        const line = size >= 10 ? 2 : 1, x = left(column), y = top(column, row);
        pen.fillStyle = mark;
        pen.fillRect(x - line, y - line, wide - inset + 2 * line, size - inset + 2 * line);
        if (size < 3) continue;
        pen.fillStyle = palette[shade];
        pen.fillRect(x, y, wide - inset, size - inset);
      }
      canvas.dataset.drawn = drawn;
      canvas.dataset.marked = marked.length;
    }
    function hover(event) {
      const x = event.offsetX - edge, y = event.offsetY - edge, line = Math.floor(y / lineHeight);
      const row = Math.floor((y - line * lineHeight) / size), place = Math.floor(x / wide), column = line * across + place;
      const inside = x >= 0 && y >= 0 && place < across && row < fields.rows && column < fields.columns;
      const outside = !inside || fields.value(column, row) < 0;
      if (outside) hideTip(); else showTip(fields.tip(column, row), event);
    }
    canvas.addEventListener("pointermove", hover);
    canvas.addEventListener("pointerleave", hideTip);
    new ResizeObserver(() => { if (canvas.clientWidth !== width) draw(); }).observe(canvas);
    return draw;
  }

  const percent = (share) => `${(share * 100).toFixed(1)} %`;
  const split = (share) => `busy ${duration(share * heat.makespan)} (${percent(share)}), waiting ${duration((1 - share) * heat.makespan)}`;
  function placeOf(rank) {
    const host = `host ${Math.floor(rank / heat.host)}, GPU ${rank % heat.host}`;
    if (!heat.stages) return host;
    const wide = heat.replicas * heat.cell;
    return `${host}\nstage ${Math.floor(rank / wide)}, replica ${Math.floor(rank % wide / heat.cell)}`;
  }
  const hosts = {
    columns: Math.ceil(ranks / heat.host), rows: heat.host,
    value: (host, gpu) => { const rank = host * heat.host + gpu; return rank < ranks ? busy[classOf[rank]] : -1; },
    marked: (host, gpu) => classOf[host * heat.host + gpu] in heat.by,
    tip: (host, gpu) => {
      const rank = host * heat.host + gpu;
      return [`rank ${rank}`, placeOf(rank), split(busy[classOf[rank]]), ...texts(rank)].join("\n");
    },
  };
  const firstOf = (replica, stage) => (stage * heat.replicas + replica) * heat.cell;
  const members = (replica, stage) => Array.from({ length: heat.cell }, (_, i) => firstOf(replica, stage) + i);
  const stages = {
    columns: heat.replicas, rows: heat.stages,
    value: (replica, stage) => {
      let sum = 0;
      for (let i = 0, first = firstOf(replica, stage); i < heat.cell; i++) sum += busy[classOf[first + i]];
      return sum / heat.cell;
    },
    marked: (replica, stage) => {
      for (let i = 0, first = firstOf(replica, stage); i < heat.cell; i++) if (classOf[first + i] in heat.by) return true;
      return false;
    },
    tip: (replica, stage) => {
      const own = members(replica, stage), slow = own.filter((rank) => classOf[rank] in heat.by);
      const named = slow.slice(0, 4).map((rank) => `rank ${rank}: ${texts(rank).join(", ")}`);
      const range = own.length > 1 ? `ranks ${own[0]} to ${own[own.length - 1]}` : `rank ${own[0]}`;
      return [`stage ${stage}, replica ${replica}`, range, `${own.length > 1 ? "mean " : ""}${split(stages.value(replica, stage))}`, ...named].join("\n");
    },
  };

  const paints = [map(document.getElementById("heat-hosts"), hosts)];
  const lower = document.getElementById("heat-stages");
  if (lower) paints.push(map(lower, stages));
  const scale = document.getElementById("heat-scale");
  for (const which of ["low", "high"]) document.querySelector(`[data-scale=${which}]`).textContent = percent(heat[which]);
  paints.push(() => {
    scale.width = SHADES;
    scale.height = 1;
    const pen = scale.getContext("2d");
    palette.forEach((colour, i) => { pen.fillStyle = colour; pen.fillRect(i, 0, 1, 1); });
  });
  const repaint = () => { readColours(); paints.forEach((paint) => paint()); };
  repaint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  matchMedia("print").addEventListener("change", repaint);
};
if (document.getElementById("data")) window.windtunnel.heatmap();
