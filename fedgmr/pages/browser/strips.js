// Strips over time, one row per client: which level it held; what it did, and how fast its link was.

const HEIGHT = 260; // of a strip, where rows would not become too flat or too high
const MOST_DRAWN = 40; // clients of a strip; of more, the first ones from fast to slow
const PHASES = {
  receiving: "--c0",
  training: "--c2",
  sending: "--c4",
  "at work": "--c5", // a deployed task, of which the server knows no more
  lost: "--c1",
  away: "--line",
};

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

// Part 0 to 1 of the way from the palest to the darkest colour.
function shade(part) {
  return `color-mix(in srgb, ${colourOf("--high")} ${Math.round(100 * part)}%, ${colourOf("--low")})`;
}

const levelColour = (level, count) => shade(count > 1 ? level / (count - 1) : 1);

// What each client did until now: its pieces of time as [from, until, phase, task] in their order, its rates as
// [from, until, MiB/s], and of a deployed run when it joined.
function activityOf(events, clients, now) {
  const found = Array.from({ length: clients }, () => ({ pieces: [], down: [], up: [], joined: null }));
  for (const [client, from, until] of events.away) found[client]?.pieces.push([from, Math.min(until, now), "away"]);
  for (const task of events.tasks) {
    const [client, , left, took, received, trained, lost] = task;
    const end = Math.min(now, took === null ? now : left + took);
    const put = (from, until, phase) =>
      (from < Math.min(until, end) || took === null) && found[client]?.pieces.push([from, Math.min(until, end), phase, task]);
    if (lost !== null || received === null) put(left, end, lost === null ? "at work" : "lost");
    else {
      put(left, left + received, "receiving");
      put(left + received, left + received + trained, "training");
      put(left + received + trained, end, "sending");
    }
  }
  for (const [from, until, rates] of events.rates) {
    rates.forEach((ways, client) =>
      ["down", "up"].forEach((name, way) =>
        ways[way].forEach((rate, part) => {
          const step = (until - from) / ways[way].length;
          found[client]?.[name].push([from + part * step, from + (part + 1) * step, rate]);
        }),
      ),
    );
  }
  for (const [client, seconds] of events.joined) if (found[client]) found[client].joined = seconds;
  for (const { pieces } of found) pieces.sort(([one], [other]) => one - other);
  return { now, clients: found };
}

// The share of the time since it joined in which a client was there without a task.
function waitedShare({ pieces, joined }, now) {
  const start = joined ?? 0;
  let [covered, end] = [0, start];
  for (const [from, until] of pieces) {
    covered += Math.max(0, until - Math.max(from, end));
    end = Math.max(end, until);
  }
  return now > start ? Math.max(0, 1 - covered / (now - start)) : 0;
}

class Strip {
  constructor(name) {
    this.canvas = make("canvas", { role: "img" });
    this.box = make("div", { className: "hover", hidden: true });
    this.plot = make("div", { className: "plot" }, this.canvas, this.box);
    this.legend = make("div", { className: "key" });
    this.element = make("div", { className: "strip" }, this.legend, this.plot);
    this.name = name;
    this.plot.addEventListener("pointermove", (event) => this.tell(event));
    this.plot.addEventListener("pointerleave", () => (this.box.hidden = true));
  }

  draw(run, runs, zoom) {
    const clients = runs.clients(run);
    Object.assign(this, { run, clients, seconds: runs.columns(run).seconds ?? [] });
    this.order = clientsBySpeed(clients).slice(0, MOST_DRAWN);
    this.step = Math.round(Math.min(26, Math.max(13, HEIGHT / Math.max(1, this.order.length))));
    const height = MARGIN.top + MARGIN.bottom + this.step * Math.max(1, this.order.length);
    this.plot.style.height = `${height}px`;
    this.canvas.setAttribute("aria-label", `${this.name} of each client of ${run.name} over time`);
    const end = run.status === "running" ? this.seconds.at(-1) : Math.max(run.seconds, this.seconds.at(-1) ?? 0);
    const width = this.plot.clientWidth;
    this.frame = new Frame(width, height, zoom ?? [0, end || 1], [0, 1], false);
    const pen = new CanvasPen(this.canvas, width, height);
    const { inner } = this.frame;
    drawAcross(pen, this.frame, `${run.clock} time (s)`, false);
    pen.text(9, MARGIN.top + inner.height / 2, inner.height > 130 ? "client, fast at the top" : "client", {
      colour: colourOf("--ink"),
      align: "center",
      turned: true,
    });
    this.legend.replaceChildren(...this.key());
    this.order.forEach((client, place) => {
      const top = MARGIN.top + this.step * place;
      pen.text(inner.x - 6, top + this.step / 2, String(client), { colour: colourOf("--soft"), align: "right" });
      pen.inside(inner.x, top, inner.width, this.step, () => this.drawClient(pen, client, top, top + this.step - 2));
    });
  }

  tell(event) {
    const area = this.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    const client = this.order?.[Math.floor((y - MARGIN.top) / this.step)];
    const text = this.frame && client !== undefined ? this.words(client, this.frame.valueAt(x)) : "";
    this.box.hidden = !text;
    this.box.textContent = text;
    if (text) placeBeside(this.box, x, y + 14, area.width);
  }
}

const boxOf = (colour, text) =>
  make("span", {}, make("i", { className: "box", style: { background: colour } }), ` ${text}`);

class LevelStrip extends Strip {
  constructor() {
    super("level");
  }

  key() {
    const { ladder } = this.run;
    return ["density", ...ladder.map((density, level) => boxOf(levelColour(level, ladder.length), density))];
  }

  drawClient(pen, client, top, bottom) {
    for (const [from, end, level] of stretches((this.clients.level ?? []).map((row) => row?.[client]))) {
      if (level === null || level === undefined) continue;
      const last = Math.min(end, this.seconds.length - 1);
      const [left, right] = [this.frame.x(this.seconds[from]), this.frame.x(this.seconds[last])];
      pen.path([left, top, right, top, right, bottom, left, bottom], {
        fill: levelColour(level, this.run.ladder.length),
      });
    }
  }

  words(client, seconds) {
    const row = lastAt(this.seconds, seconds);
    const level = this.clients.level?.[row]?.[client];
    if (!isNumber(level)) return "";
    const left = this.clients.checks_left?.[row]?.[client];
    const outlook = isNumber(left) ? `, moves up in ${left} checks without improvement` : "";
    const density = this.run.ladder[level] ?? "–";
    return `client ${client}: level ${level}, density ${density}${outlook}, row ${row}, ${short(this.seconds[row])} s`;
  }
}

class TaskStrip extends Strip {
  constructor() {
    super("tasks");
  }

  draw(run, runs, zoom) {
    this.activity = runs.activity(run).clients;
    const all = this.activity.flatMap(({ down, up }) => [...down, ...up].map(([, , rate]) => rate));
    this.fastest = all.reduce((most, rate) => Math.max(most, rate), 0);
    super.draw(run, runs, zoom);
  }

  key() {
    const seen = new Set(this.activity.flatMap(({ pieces }) => pieces.map(([, , phase]) => phase)));
    const boxes = Object.keys(PHASES).filter((phase) => seen.has(phase));
    const lines = this.fastest ? [`lines: rate down, dotted up, full height ${short(this.fastest)} MiB/s (root)`] : [];
    return ["tasks", ...boxes.map((phase) => boxOf(colourOf(PHASES[phase]), phase)), ...lines];
  }

  drawClient(pen, client, top, bottom) {
    const { pieces, down, up } = this.activity[client];
    const inside = ([from, until]) => until >= this.frame.xs[0] && from <= this.frame.xs[1];
    for (const [phase, colour] of Object.entries(PHASES).reverse()) {
      const points = [];
      let end = -Infinity; // in pixels: of pieces that share one, the first stands for all
      for (const [from, until] of pieces.filter((piece) => piece[2] === phase && inside(piece))) {
        const [left, right] = [this.frame.x(from), Math.max(this.frame.x(until), this.frame.x(from) + 0.5)];
        if (right < end + 0.5) continue;
        points.push(left, top, right, top, right, bottom, left, bottom, NaN, NaN);
        end = right;
      }
      if (points.length) pen.path(points, { fill: colourOf(colour) });
    }
    for (const [line, dash] of [
      [down, []],
      [up, [1.5, 2]],
    ]) {
      const height = (rate) => bottom - (bottom - top) * Math.sqrt(rate / this.fastest);
      const points = line
        .filter(inside)
        .flatMap(([from, until, rate]) => [this.frame.x(from), height(rate), this.frame.x(until), height(rate)]);
      if (points.length) pen.path(points, { stroke: colourOf("--ink"), dash });
    }
  }

  words(client, seconds) {
    const { pieces, down, up } = this.activity[client];
    const at = (found) => found.findLast(([from, until]) => from <= seconds && seconds < until);
    const [, , phase, task] = at(pieces) ?? [0, 0, seconds <= (this.seconds.at(-1) ?? 0) ? "waiting" : ""];
    if (!phase) return "";
    const [, level, left, took, , , lost] = task ?? [];
    const words = task ? ` a task of level ${level} from ${short(left)} s` : "";
    const end = task && took !== null ? ` to ${short(left + took)} s` : "";
    const rates = [at(down), at(up)].filter(Boolean).map(([, , rate]) => short(rate));
    const link = rates.length ? `; link ${rates.join(" down, ")} up (MiB/s)` : "";
    return `client ${client}: ${phase}${lost ? ` (${lost})` : ""}${words}${end}${link}`;
  }
}
