/**
 * A client in Node 20 or later that takes part in a task with one-shot sums until it ends, then prints recommendations.
 *
 *     node examples/web/take-part.mjs --server URL --invitation I --organiser=KEY --scope S --issuer URL --code C
 *         --items 3,17,20 --folder DIR [--trust-models] [--follow] [--rounds N] [--events]
 *
 * The invitation and the code are needed the first time only. --folder: keeps keys and model, for this user alone.
 * --trust-models: takes part although a server that lies about the model can read in the sums which items clients have.
 * --follow: goes on in the task that follows, if the one in the folder is over. --rounds: stops after so many
 * contributions. --events: prints every event as a line of JSON, the client's own vector included; for tests and other
 * programs on the same device.
 */

import { parseArgs } from "node:util";
import { baseUrl } from "./hushrec/api.js";
import { FileStore } from "./hushrec/file_store.js";
import { Participant, POLICY } from "./hushrec/index.js";

/** Asks an organiser's issuing endpoint for a certificate, with a one-time code if there is one. */
const issuer = (url, code) => async (request) => {
  const headers = { "content-type": "application/json", ...(code ? { authorization: `Bearer ${code}` } : {}) };
  const answer = await fetch(`${baseUrl(url)}/v1/certificates`, { method: "POST", headers, body: JSON.stringify(request) });
  if (!answer.ok) throw new Error(`the organiser refused: ${await answer.text()}`);
  return answer.json();
};

function line(event) {
  switch (event.kind) {
    case "contributed":
      return `round ${event.round}: sent ${event.bytes} bytes${event.resent ? " again" : ""}`;
    case "abstained":
    case "missed":
    case "training-failed":
    case "waiting":
    case "unreachable":
    case "not-followed":
      return `${event.kind}: ${event.reason}`;
    case "model":
      return `model of round ${event.round} is here`;
    default:
      return null;
  }
}

const text = { type: "string" };
const names = ["server", "invitation", "organiser", "scope", "issuer", "code", "items", "folder", "rounds"];
const options = { ...Object.fromEntries(names.map((name) => [name, text])), events: { type: "boolean" }, "trust-models": { type: "boolean" }, follow: { type: "boolean" } };
const given = parseArgs({ options }).values;
const items = (given.items ?? "").split(",").map(Number);
const stop = new AbortController();
let left = Number(given.rounds ?? Infinity);

function on(event) {
  const shown = given.events ? JSON.stringify(event) : line(event);
  if (shown) console.log(shown);
  if (event.kind === "model" && left <= 0) stop.abort();
  if (event.kind === "contributed") left--;
}

process.on("SIGINT", () => stop.abort());
const store = new FileStore(given.folder);
const organiser = { key: given.organiser, scope: given.scope };
const policy = { ...POLICY, trustModels: given["trust-models"] ?? false, follow: given.follow ?? false };
const issue = issuer(given.issuer ?? given.server, given.code);
const client = await Participant.join({ url: given.server, invitation: given.invitation, organiser, issue, store, policy, on });
try {
  await client.takePart(() => items, stop.signal);
} catch (error) {
  if (!stop.signal.aborted) throw error;
}
console.log("recommended:", (await client.recommend(5, items)).map(({ item }) => item).join(", "));
process.exit(0); // a long poll may still be open
