// The table of clients of one run: what each has done so far, what it does now, and what comes next.

// The seconds of the last row in which a client had sent something new.
function lastSeen(clients, seconds, client) {
  const updates = clients.updates ?? [];
  for (let row = updates.length - 1; row > 0; row -= 1) {
    if (updates[row]?.[client] !== updates[row - 1]?.[client]) return seconds[row];
  }
  return null;
}

// What a client does now, from its last piece of time.
function doingNow({ pieces, joined }, now, isDeployed) {
  const last = pieces.at(-1);
  if (!last) return isDeployed && joined === null ? "not connected" : "waiting";
  const [from, until, phase, task] = last;
  const goesOn = task ? task[3] === null || task[2] + task[3] > now : until >= now;
  if (goesOn) return `${phase === "lost" ? "at work" : phase} since ${short(from, 1)} s`;
  return phase === "lost" ? `lost a task at ${short(until, 1)} s (${task[6]})` : `waiting since ${short(until, 1)} s`;
}

// The columns, as `tableParts` takes them.
function clientColumns(run, runs, order) {
  const [clients, seconds] = [runs.clients(run), runs.columns(run).seconds ?? []];
  const { now: moment, clients: activity } = runs.activity(run) ?? {};
  const now = (name, client) => clients[name]?.at(-1)?.[client] ?? undefined;
  const latest = (name, client) => clients[name]?.findLast((row) => isNumber(row?.[client]))?.[client];
  const both = (client) => (now("bytes_down", client) ?? 0) + (now("bytes_up", client) ?? 0);
  const most = Math.max(1, ...order.map(both));
  const rate = (way) => (client) =>
    short(activity?.[client][way].y.at(-1) ?? run.links?.[client]?.[way === "up" ? 1 : 0]);
  const seen = (client) => {
    const ended = activity?.[client].pieces.filter(
      ([, , phase, task]) => task && task[3] !== null && phase !== "lost" && task[2] + task[3] <= moment,
    );
    return ended?.length ? ended.at(-1)[1] : lastSeen(clients, seconds, client);
  };
  const waited = (client) => `${Math.round(100 * waitedShare(activity[client], moment))} %`;
  const lost = (client) => (activity[client].phases.get("lost") ?? []).length; // of each task one piece
  const { metric } = run;
  const isDeployed = run.clock === "real";
  return [
    ["client", String],
    ...(activity ? [["now", (client) => doingNow(activity[client], moment, isDeployed), "text"]] : []),
    ...(run.links || activity?.some(({ down }) => down.x.length)
      ? [
          ["down (MiB/s)", rate("down")],
          ["up (MiB/s)", rate("up")],
        ]
      : []),
    ["level", (client) => short(now("level", client), 1)],
    ["density", (client) => textOf(run.ladder[now("level", client)])],
    ...(clients.checks_left
      ? [["moves up in", (client) => (isNumber(now("checks_left", client)) ? `${now("checks_left", client)} checks` : "–")]]
      : []),
    ["updates", (client) => short(now("updates", client), 1)],
    ["staleness", (client) => short(now("staleness", client), 1)],
    ...(clients.own
      ? [[`own ${metric.name}`, (client) => written(metric, latest("own", client))]]
      : []),
    ["received", (client) => bytes(now("bytes_down", client))],
    ["sent", (client) => [bytes(now("bytes_up", client)), share(both(client) / most)]],
    ...(activity
      ? [
          ["waited", waited],
          ["lost", (client) => String(lost(client))],
        ]
      : []),
    ["last seen", (client) => (seen(client) === null ? "never" : `${short(seen(client), 1)} s`)],
  ];
}

function drawClientTable(table, run, runs) {
  const order = clientsBySpeed(runs.clients(run));
  const columns = clientColumns(run, runs, order);
  table.replaceChildren(...tableParts(columns, order));
}
