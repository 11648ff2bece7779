// The clients of one run: who held which level when, and what each has done so far.

const HEIGHT = 260; // of the strip, where rows would not become too flat or too high
const MOST_DRAWN = 40; // clients of the strip; of more, the first ones from fast to slow

// Clients from fast to slow: by the level they began with, which follows the link, then by number.
function clientsBySpeed(clients) {
  const first = clients.level?.[0] ?? [];
  return first.map((_, client) => client).sort((one, other) => (first[other] ?? 0) - (first[one] ?? 0) || one - other);
}

// Stretches of rows in which a client's level stays the same: [first row, end row, level].
function stretches(levels) {
  const found = [];
  levels.forEach((level, row) => {
    if (found.length && found.at(-1)[2] === level) found.at(-1)[1] = row + 1;
    else found.push([row, row + 1, level]);
  });
  return found;
}

function levelColour(level, count) {
  const part = count > 1 ? Math.round((100 * level) / (count - 1)) : 100;
  return `color-mix(in srgb, ${colourOf("--high")} ${part}%, ${colourOf("--low")})`;
}

class LevelStrip {
  constructor(element) {
    this.canvas = make("canvas", { role: "img" });
    this.box = make("div", { className: "hover", hidden: true });
    this.plot = make("div", { className: "plot" }, this.canvas, this.box);
    element.replaceChildren(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.tell(event));
    this.plot.addEventListener("pointerleave", () => (this.box.hidden = true));
  }

  draw(run, runs, zoom) {
    const clients = runs.clients(run);
    Object.assign(this, { run, levels: clients.level ?? [], seconds: runs.columns(run).seconds ?? [] });
    this.order = clientsBySpeed(clients).slice(0, MOST_DRAWN);
    this.step = Math.round(Math.min(26, Math.max(13, HEIGHT / Math.max(1, this.order.length))));
    const height = MARGIN.top + MARGIN.bottom + this.step * Math.max(1, this.order.length);
    this.plot.style.height = `${height}px`;
    this.canvas.setAttribute("aria-label", `level of each client of ${run.name} over time`);
    const end = run.status === "running" ? this.seconds.at(-1) : Math.max(run.seconds, this.seconds.at(-1) ?? 0);
    const width = this.plot.clientWidth;
    const frame = (this.frame = new Frame(width, height, zoom ?? [0, end || 1], [0, 1], false));
    const pen = new CanvasPen(this.canvas, width, height);
    drawAcross(pen, frame, `${run.clock} time (s)`, false);
    pen.text(9, MARGIN.top + frame.inner.height / 2, frame.inner.height > 130 ? "client, fast at the top" : "client", {
      colour: colourOf("--ink"),
      align: "center",
      turned: true,
    });
    this.order.forEach((client, place) => this.drawClient(pen, client, MARGIN.top + this.step * place));
  }

  drawClient(pen, client, top) {
    const { inner } = this.frame;
    pen.text(inner.x - 6, top + this.step / 2, String(client), { colour: colourOf("--soft"), align: "right" });
    pen.inside(inner.x, top, inner.width, this.step, () => {
      for (const [from, end, level] of stretches(this.levels.map((row) => row?.[client]))) {
        if (level === null || level === undefined) continue;
        const [left, right] = [
          this.frame.x(this.seconds[from]),
          this.frame.x(this.seconds[Math.min(end, this.seconds.length - 1)]),
        ];
        const bottom = top + this.step - 2;
        pen.path([left, top, right, top, right, bottom, left, bottom], {
          fill: levelColour(level, this.run.ladder.length),
        });
      }
    });
  }

  tell(event) {
    const area = this.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    const client = this.order?.[Math.floor((y - MARGIN.top) / this.step)];
    const row = this.frame ? lastAt(this.seconds, this.frame.valueAt(x)) : -1;
    const level = this.levels?.[row]?.[client];
    this.box.hidden = !isNumber(level);
    if (this.box.hidden) return;
    const density = this.run.ladder[level] ?? "–";
    const place = `row ${row}, ${short(this.seconds[row])} s`;
    this.box.textContent = `client ${client}: level ${level}, density ${density}, ${place}`;
    placeBeside(this.box, x, y + 14, area.width);
  }
}

function ladderLegend(run) {
  const boxes = run.ladder.map((density, level) =>
    make(
      "span",
      {},
      make("i", { className: "box", style: { background: levelColour(level, run.ladder.length) } }),
      ` ${density}`,
    ),
  );
  return ["density", ...boxes];
}

// The seconds of the last row in which a client had sent something new.
function lastSeen(clients, seconds, client) {
  const updates = clients.updates ?? [];
  for (let row = updates.length - 1; row > 0; row -= 1) {
    if (updates[row]?.[client] !== updates[row - 1]?.[client]) return seconds[row];
  }
  return null;
}

// The columns: heading, and a client's cell.
function clientColumns(run, clients, seconds, order) {
  const now = (name, client) => clients[name]?.at(-1)?.[client] ?? undefined;
  const both = (client) => (now("bytes_down", client) ?? 0) + (now("bytes_up", client) ?? 0);
  const most = Math.max(1, ...order.map(both));
  const rate = (way) => (client) => short(run.links[client]?.[way]);
  const seen = (client) => lastSeen(clients, seconds, client);
  return [
    ["client", String],
    ...(run.links
      ? [
          ["down (MiB/s)", rate(0)],
          ["up (MiB/s)", rate(1)],
        ]
      : []),
    ["level", (client) => short(now("level", client), 1)],
    ["density", (client) => textOf(run.ladder[now("level", client)])],
    ["updates", (client) => short(now("updates", client), 1)],
    ["staleness", (client) => short(now("staleness", client), 1)],
    ["received", (client) => bytes(now("bytes_down", client))],
    ["sent", (client) => [bytes(now("bytes_up", client)), share(both(client) / most)]],
    ["last seen", (client) => (seen(client) === null ? "never" : `${short(seen(client), 1)} s`)],
  ];
}

function drawClientTable(table, run, runs) {
  const clients = runs.clients(run);
  const order = clientsBySpeed(clients);
  const columns = clientColumns(run, clients, runs.columns(run).seconds ?? [], order);
  const head = columns.map(([name]) => make("th", { scope: "col" }, name));
  const row = (client) => columns.map(([, cell]) => make("td", {}, ...[cell(client)].flat()));
  const body = order.map((client) => make("tr", {}, ...row(client)));
  table.replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}
