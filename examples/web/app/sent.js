/** The panel "What left this device": messages by kind, totals, the last contribution, and the task's terms. */

const find = (id) => document.getElementById(id);

/** What each message with a body tells the server. */
const CONTENT = {
  contribution: "Your trained values under a mask; in one-shot tasks also sealed shares of the mask for the committee",
  "request for a certificate": "Public keys, to the server of this page",
  enrolment: "Public keys, certificate and invitation",
  "keys of the round": "Public keys for one round",
  "sealed shares": "Shares of your mask, each sealed for one other client",
  confirmation: "Your signature of who is in the sum",
  "shares of masks": "Shares that take off the sum of the masks, and no mask of a single client in the sum",
  "refusal of a round": "That this device left a round, without a reason of yours",
};
const WITHOUT_BODY = "questions and downloads";

export function bytes(count) {
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(2)} MB`;
}

function cell(text, small) {
  const made = document.createElement("td");
  made.append(text);
  if (small) made.append(Object.assign(document.createElement("small"), { textContent: small }));
  return made;
}

const KEY = "hushrec-films-sent";

/** Counts requests by their purpose, over all visits to one task, and shows them, the largest first. */
export class SentPanel {
  #kinds = new Map();
  #task = null;

  /** Goes on with the counts of earlier visits, if they are of this task. */
  open(task) {
    const { task: before, kinds } = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    this.#kinds = new Map(before === task ? kinds : []);
    this.#task = task;
    this.#show();
  }

  count({ what, sent, received }) {
    const kind = this.#kinds.get(what) ?? { times: 0, sent: 0, received: 0 };
    this.#kinds.set(what, { times: kind.times + 1, sent: kind.sent + sent, received: kind.received + received });
    localStorage.setItem(KEY, JSON.stringify({ task: this.#task, kinds: [...this.#kinds] }));
    this.#show();
  }

  static forget() {
    localStorage.removeItem(KEY);
  }

  #show() {
    const kinds = [...this.#kinds].sort(([, a], [, b]) => b.sent - a.sent);
    const sum = (name) => kinds.reduce((total, [, kind]) => total + kind[name], 0);
    find("messages-sent").textContent = sum("times");
    find("bytes-sent").textContent = bytes(sum("sent"));
    find("bytes-received").textContent = bytes(sum("received"));
    const rows = this.#grouped(kinds).map(([what, { times, sent }]) => {
      const row = document.createElement("tr");
      row.className = what === "contribution" ? "own" : "";
      row.append(cell(what[0].toUpperCase() + what.slice(1), CONTENT[what] ?? "No body: for rounds, the model, public keys"));
      row.append(cell(times), cell(bytes(sent)));
      return row;
    });
    find("messages").replaceChildren(...rows);
  }

  /** Messages with a body, and all others as one. */
  #grouped(kinds) {
    const others = kinds.filter(([what]) => !CONTENT[what]).map(([, kind]) => kind);
    const sum = (name) => others.reduce((total, kind) => total + kind[name], 0);
    const whole = others.length ? [[WITHOUT_BODY, { times: sum("times"), sent: sum("sent") }]] : [];
    return [...kinds.filter(([what]) => CONTENT[what]), ...whole];
  }

  contributed({ round, bytes: length, cohort, steps, times, resent }) {
    if (resent) {
      find("last").textContent = `Round ${round}: the ${bytes(length)} of before, sent again.`;
      return;
    }
    const [train, seal, upload] = ["train", "seal", "upload"].map((name) => `${Math.round(times[name])} ms`);
    find("last").textContent =
      `Round ${round}, ${cohort} clients: ${bytes(length)}; trained in ${train}, masked in ${seal}, sent in ${upload}. ` +
      "To the server it looks random.";
    const first = steps.filter((step) => step !== 0).slice(0, 8);
    find("last-values").textContent =
      `Of ${steps.length} values ${steps.filter((step) => step !== 0).length} were not zero before they were masked, ` +
      `the first: ${first.join(", ")}. They are shown on this device only.`;
  }

  terms({ mechanism, resolved, schedule, opened_by: openedBy, organiser }) {
    const { committee, threshold, corrupt } = resolved.main_sum.plan;
    const withstood = 2 * threshold - committee - 1;
    const opening =
      mechanism.name === "oneshot"
        ? `${threshold} of the ${committee} members of a committee have to help to open a sum; up to ${withstood} may collude with the server.`
        : `The clients of a round open its sum together; ${100 * corrupt} % of them may collude with the server.`;
    const { epsilon } = resolved.recipe.parameters;
    const lines = [
      `The server learns the sum of at least ${schedule.min_clients} clients in each of ${schedule.rounds} rounds.`,
      opening,
      `Sums (${mechanism.name}) can be read by ${openedBy} once they are released.`,
      epsilon ? `Differential privacy: epsilon ${epsilon} in each contribution.` : "No differential privacy: sums are exact, without added noise (no epsilon).",
      `Clients and committee are certified by the organiser of "${organiser.scope}".`,
      "Your keys are in this browser's IndexedDB; scripts cannot read the secret ones.",
    ];
    find("terms").replaceChildren(...lines.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  }
}
