/** Everything that computes and sends runs here, so that the page stays responsive. One worker a page. */

import { Participant, recommend } from "../hushrec/participant.js";
import { IndexedStore } from "../hushrec/store.js";
import { POLICY } from "../hushrec/terms.js";

const DATABASE = "hushrec-films";
const COUNT = 8;
/** The page takes the models of the server that its own operator chose: README.md, "What it trusts". */
const AGREED = { ...POLICY, trustModels: true };

let liked = [];
let settings = null;
let store = null;
let participant = null;
let stop = null;
let running = Promise.resolve(); // the rounds that the page takes part in

const tell = (event) => postMessage(event);
const fail = (error) => tell({ kind: "failed", reason: error.message });

/** Asks the page's own server for a certificate; a real app is logged in there. */
async function issue(request) {
  const body = JSON.stringify(request);
  const answer = await fetch("/v1/certificates", { method: "POST", headers: { "content-type": "application/json" }, body });
  const text = await answer.text();
  tell({ kind: "traffic", what: "request for a certificate", sent: body.length, received: text.length });
  if (!answer.ok) throw new Error(`no certificate: ${text}`);
  return JSON.parse(text);
}

/** Opens the store. Keys, membership and model of another task than the settings' are of no use any more. */
async function open(given) {
  settings = given;
  store = await IndexedStore.open(DATABASE);
  const membership = await store.get("membership");
  if (membership && (membership.task !== settings.task || membership.url !== settings.server)) await store.clear();
  await showPicks();
}

async function showPicks() {
  if (store) tell({ kind: "picks", picks: await recommend(store, settings.organiser, COUNT, liked, AGREED) });
}

function on(event) {
  if (event.kind === "model") showPicks().catch(fail);
  tell(event);
}

async function join(signal) {
  const { server: url, invitation, organiser } = settings;
  participant = await Participant.join({ url, invitation, organiser, issue, store, policy: AGREED, on, signal });
  tell({ kind: "joined", task: participant.task });
}

/** Only one page of this browser takes part at a time: two would send two contributions to one round. */
async function takePart() {
  stop = new AbortController();
  const { signal } = stop;
  try {
    await navigator.locks.request(DATABASE, { ifAvailable: true }, async (lock) => {
      if (!lock) return tell({ kind: "elsewhere" });
      if (!participant) await join(signal);
      await participant.takePart(() => liked, signal);
    });
  } catch (error) {
    if (!signal.aborted) throw error;
    tell({ kind: "paused" });
  }
}

/** Waits until nothing is written any more, then deletes what was. */
async function forget() {
  stop?.abort();
  await running.catch(() => {}); // reported by the command that started it
  participant = null;
  await store?.clear();
  tell({ kind: "forgotten" });
}

const COMMANDS = {
  open,
  likes: (items) => {
    liked = items;
    return showPicks();
  },
  start: () => (running = takePart()),
  pause: () => stop?.abort(),
  forget,
};

let opened = Promise.resolve(); // every other command waits until the store is open

onmessage = ({ data: [command, value] }) => {
  const done = opened.then(() => COMMANDS[command](value));
  if (command === "open") opened = done;
  done.catch(fail);
};
