// The runs as the page knows them: the state of each, and its rows so far.

const AT_ONCE = 4; // requests for rows at the same time

class Runs {
  constructor(source) {
    this.source = source;
    this.state = null;
    this.entries = []; // of the state, in its order
    this.data = new Map(); // by id: epoch, rows that have come, columns, clients
    this.events = new Map(); // by id: what clients did, of runs that were shown in detail
    this.changes = 0;
    this.texts = new Map(); // by id: the entry as text, to see what has changed
    this.remembered = new Map();
  }

  // What was computed from the rows of some runs, computed once until one of them has new rows.
  remember(entries, what, compute) {
    const key = `${what} ${entries.map(({ id, status }) => `${id} ${status} ${this.data.get(id)?.version}`).join()}`;
    if (this.remembered.size > 1000) this.remembered.clear();
    if (!this.remembered.has(key)) this.remembered.set(key, compute());
    return this.remembered.get(key);
  }

  // Asks for what is new; true if anything has changed.
  async refresh(onProgress) {
    const state = await this.source.state();
    const before = this.changes;
    if (JSON.stringify(state) !== JSON.stringify(this.state)) {
      this.state = state;
      this.entries = state.runs;
      this.texts = new Map(state.runs.map((run) => [run.id, JSON.stringify({ ...run, summary: null })]));
      this.changes += 1;
    }
    const behind = this.entries.filter((run) => this.isBehind(run));
    const next = async () => {
      for (let run = behind.shift(); run; run = behind.shift()) {
        const known = this.data.get(run.id);
        const from = known && known.epoch === run.epoch ? known.received : 0;
        this.take(run, await this.source.columns(run.id, from, run.epoch));
        onProgress?.();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, next));
    return this.changes !== before;
  }

  isBehind(run) {
    const known = this.data.get(run.id);
    return known ? known.epoch !== run.epoch || known.received < run.rows : run.rows > 0;
  }

  // Puts rows in their place. A resumed run writes rows again that the page has shown already: they stay until the
  // new ones have reached them, so nothing jumps; where the new ones differ, the rest of the old ones goes.
  take(run, answer) {
    let known = this.data.get(run.id);
    if (!known) this.data.set(run.id, (known = { received: 0, version: 0, columns: {}, clients: {} }));
    const old = known.columns.seconds ?? [];
    const fresh = answer.columns.seconds ?? [];
    const end = answer.from + fresh.length;
    const differs = fresh.some((value, row) => answer.from + row < old.length && old[answer.from + row] !== value);
    for (const part of ["columns", "clients"]) {
      for (const name of new Set([...Object.keys(known[part]), ...Object.keys(answer[part] ?? {})])) {
        const values = (known[part][name] ??= []);
        const given = answer[part][name] ?? [];
        while (values.length < answer.from) values.push(null);
        for (let row = 0; row < fresh.length; row += 1) values[answer.from + row] = given[row] ?? null;
        if (differs || run.status !== "running") values.length = Math.min(values.length, end);
      }
    }
    Object.assign(known, { epoch: answer.epoch, received: end, version: known.version + 1, theory: answer.theory });
    known.columns.bytes = totals(known.clients);
    known.columns.uplink = ratesOf(known.columns.seconds ?? [], known.columns.bytes_server ?? []);
    this.changes += 1;
  }

  columns(run) {
    return this.data.get(run.id)?.columns ?? {};
  }

  clients(run) {
    return this.data.get(run.id)?.clients ?? {};
  }

  // Asks for what the clients of a run did since the last time; true if there was anything.
  async refreshEvents(run) {
    const known = this.events.get(run.id);
    if (known?.version === run.events || this.asked) return false;
    this.asked = true;
    try {
      const answer = await this.source.events(run.id, known?.epoch === run.epoch ? known.rows : 0, run.epoch);
      const events = { epoch: answer.epoch, rows: answer.rows, version: run.events };
      for (const name of ["tasks", "away", "rates", "joined"])
        events[name] = answer.from > 0 ? [...known[name], ...answer[name]] : answer[name];
      this.events.set(run.id, events);
    } finally {
      this.asked = false;
    }
    return true;
  }

  // What each client of a run did until when; null where that is not recorded, or has not come yet.
  activity(run) {
    const events = this.events.get(run.id);
    if (!events || !(events.tasks.length || events.away.length || events.joined.length)) return null;
    if (events.activity?.rows !== this.rows(run)) {
      // Rows of a deployed run come now and then, tasks begin and end in between.
      const moments = run.clock === "real" ? events.tasks.map(([, , left, took]) => left + (took ?? 0)) : [];
      const now = moments.reduce((most, end) => Math.max(most, end), this.columns(run).seconds?.at(-1) ?? 0);
      events.activity = { rows: this.rows(run), ...activityOf(events, run.clients, now) };
    }
    return events.activity;
  }

  // The metric that heads tables and maps: of the first run that has rows, by which it is known.
  get metric() {
    return (this.entries.find((run) => this.rows(run)) ?? this.entries[0])?.metric;
  }

  rows(run) {
    return this.columns(run).seconds?.length ?? 0;
  }
}

// Bytes up and down over all clients, row by row, as tables of this project count them.
function totals(clients) {
  const sum = (row) => (row ?? []).reduce((total, value) => total + (value ?? 0), 0);
  return (clients.bytes_down ?? []).map((row, place) => sum(row) + sum(clients.bytes_up?.[place]));
}

// What crossed the uplink from row to row, in bytes per second.
function ratesOf(seconds, counts) {
  return counts.map((count, row) => {
    const rate = row ? (count - counts[row - 1]) / (seconds[row] - seconds[row - 1]) : NaN;
    return isNumber(rate) ? rate : null;
  });
}
