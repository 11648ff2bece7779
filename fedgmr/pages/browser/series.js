// From runs to lines: what is drawn against what, runs that differ by seed alone as mean and band, smoothing.

const AXES = { seconds: "time (s)", bytes: "data of all clients (bytes)", tick: "ticks", wall: "time of the host (s)" };
const MOST_WORDS = 3; // settings in the name of a line
const ASIDE = new Set(["seed", "method", "name", "about", "output"]); // settings that a line's name does not repeat

const SERVER = {
  uplink: { label: "server's uplink (MB/s)", unit: "MB/s", digits: 3 },
  bytes_server: { label: "server's uplink, so far (MB)", unit: "MB", digits: 2 },
};

const labelOf = ({ name, unit }) => (unit ? `${name} (${unit})` : name);
const written = ({ factor, digits, unit }, value) =>
  isNumber(value) ? `${(value * factor).toFixed(digits)}${unit ? ` ${unit}` : ""}` : "–";

// Quantities that can be drawn, by column: the leading metric first, then loss, views and the rest.
function quantities(runs) {
  const found = new Map();
  for (const run of runs.entries) {
    for (const name of Object.keys(runs.columns(run))) {
      if (!(name in AXES) && !found.has(name)) found.set(name, readingOf(name, run));
    }
  }
  const leading = runs.entries[0]?.metric.key;
  const rank = (name) => (name === leading ? 0 : name === "loss" ? 1 : name.startsWith("view ") ? 2 : 3);
  const density = (name) => Number(name.match(/[\d.]+/)?.[0] ?? Infinity); // of a level's view, in its name
  const order = (one, other) => rank(one) - rank(other) || density(one) - density(other) || one.localeCompare(other);
  return new Map([...found].sort(([one], [other]) => order(one, other) || 0));
}

function readingOf(column, { metric, others }) {
  const leads = column === metric.key || column.startsWith("view ") || column === "validation";
  if (column in SERVER) return { factor: 1e-6, ...SERVER[column] };
  const other = others.find(({ key }) => key === column);
  if (other) return { ...other, label: labelOf(other) };
  if (!leads) return { label: column.replaceAll("_", " "), factor: 1, unit: "", digits: 4 };
  const name = column === metric.key ? metric.name : `${metric.name}, ${column}`;
  return { ...metric, label: labelOf({ ...metric, name }) };
}

// Runs by line: each alone, or those together that differ only by seed.
function groupsOf(entries, bands) {
  const groups = new Map();
  for (const run of entries) {
    const settings = Object.entries(run.settings).filter(([key]) => !ASIDE.has(key));
    const key = bands ? JSON.stringify([run.method, settings]) : String(run.id);
    if (!groups.has(key)) groups.set(key, { runs: [], place: groups.size });
    groups.get(key).runs.push(run);
  }
  const methods = Map.groupBy(entries, ({ method }) => method);
  for (const group of groups.values()) {
    const [run] = group.runs;
    group.name = bands ? nameOf(run, methods.get(run.method), methods.size > 1) : run.name;
  }
  return [...groups.values()];
}

// What a run and its seeds are called: the method, and the settings in which others of this method differ; where these
// are too many to read, the run's own name.
function nameOf(run, others, withMethod) {
  const telling = tellingSettings(others);
  if (telling.length > MOST_WORDS) return run.name;
  const words = telling.map((key) => `${key}=${textOf(run.settings[key])}`);
  return [...(withMethod || !words.length ? [run.method] : []), ...words].join(" ");
}

// Settings in which runs of the same method differ: what the method's title does not say already.
function tellingSettings(entries) {
  const values = new Map(); // by method and key
  const telling = new Set();
  for (const run of entries) {
    for (const [key, value] of Object.entries(run.settings)) {
      if (ASIDE.has(key)) continue;
      const place = `${run.method} ${key}`;
      if (values.has(place) && values.get(place) !== textOf(value)) telling.add(key);
      values.set(place, textOf(value));
    }
  }
  return [...telling];
}

const textOf = (value) => (typeof value === "string" ? value : (JSON.stringify(value) ?? "–"));

// The lines of one chart: x, y, the rows' numbers, and low and high where there is a band.
function linesOf(runs, groups, isShown, axis, column, smoothing) {
  const lines = [];
  for (const group of groups) {
    const drawn = group.runs.filter(isShown);
    const member = (run) => runs.remember([run], `${axis} ${column}`, () => memberOf(runs, run, axis, column));
    const members = drawn.map(member).filter((each) => each.x.length);
    if (!members.length) continue;
    const base = { name: group.name, place: group.place, reading: members[0].reading };
    if (members.length === 1) {
      const [{ x, y, rows, run }] = members;
      lines.push({ ...base, x, y: smoothed(y, smoothing), exact: y, rows, run });
      continue;
    }
    const mean = runs.remember(drawn, `mean ${axis} ${column}`, () => averaged(members));
    const y = smoothed(mean.y, smoothing);
    const shift = (sign) => y.map((value, place) => value + sign * mean.spread[place]);
    lines.push({
      ...base,
      x: mean.x,
      y,
      exact: mean.y,
      spread: mean.spread,
      low: shift(-1),
      high: shift(1),
      count: members.length,
    });
    for (const { x, y: values } of members) {
      const start = lastAt(x, mean.end);
      if (start === x.length - 1) continue; // seeds that have come further go on as thin lines
      lines.push({ ...base, thin: true, x: x.slice(start), y: smoothed(values, smoothing).slice(start) });
    }
  }
  return lines;
}

function memberOf(runs, run, axis, column) {
  const columns = runs.columns(run);
  const reading = readingOf(column, run);
  const [x, y, rows] = [[], [], []];
  const [across, upward] = [columns[axis] ?? [], columns[column] ?? []];
  for (let row = 0; row < upward.length; row += 1) {
    if (!isNumber(upward[row]) || !isNumber(across[row])) continue;
    x.push(across[row]);
    y.push(upward[row] * reading.factor);
    rows.push(row);
  }
  return { x, y, rows, run, reading, ended: ["diverged", "stopped"].includes(run.status) };
}

// Mean and standard deviation over runs, each keeping its value until its next row, up to the end of the shortest.
// Runs that diverged or were stopped do not shorten it. `Curve.average` in reporting/records.py is the same.
function averaged(members) {
  const start = Math.max(...members.map(({ x }) => x[0]));
  const lasting = members.filter(({ ended }) => !ended).map(({ x }) => x.at(-1));
  const end = Math.max(start, lasting.length ? Math.min(...lasting) : Math.max(...members.map(({ x }) => x.at(-1))));
  const spacing = Math.min(
    ...members.map(({ x }) => median(x.map((value, place) => value - (place ? x[place - 1] : start)))),
  );
  const times = Float64Array.from(members.flatMap(({ x }) => x)).sort(); // sorts numbers ten times as fast as an array
  const grid = [end]; // of a crowd of nearly equal times the last stands for all
  for (let place = lastAt(times, end); place >= 0 && times[place] >= start; place -= 1) {
    const room = grid.at(-1) - times[place];
    if (room > 0 && room >= spacing / 2) grid.push(times[place]);
  }
  grid.reverse();
  return { x: grid, ...momentsOf(members.map((member) => heldAt(member, grid))), end };
}

// A run's values at ascending times, each kept until the next.
function heldAt({ x, y }, times) {
  let place = 0;
  return times.map((time) => {
    while (place + 1 < x.length && x[place + 1] <= time) place += 1;
    return y[place];
  });
}

// Mean and standard deviation of lists, place by place; plain loops, because this is what a change of the axis costs.
function momentsOf(lists) {
  const [y, spread] = [[], []];
  for (let place = 0; place < lists[0].length; place += 1) {
    let [sum, squares] = [0, 0];
    for (const list of lists) sum += list[place];
    const mean = sum / lists.length;
    for (const list of lists) squares += (list[place] - mean) ** 2;
    y.push(mean);
    spread.push(Math.sqrt(squares / (lists.length - 1)));
  }
  return { y, spread };
}

function median(values) {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// The place of the last of ascending values that is at most `value`; -1 where all are more.
function lastAt(values, value) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function nearest(values, value) {
  const before = Math.max(0, lastAt(values, value));
  return before + 1 < values.length && values[before + 1] - value < value - values[before] ? before + 1 : before;
}

// Exponential moving average without the pull of its beginning; weight 0 leaves the values as they are.
function smoothed(values, weight) {
  if (!weight) return values;
  let [sum, total] = [0, 0];
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}
