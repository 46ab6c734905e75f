import { IndexedStore, Participant, POLICY } from "./node_modules/@hushrec/client/index.js";

const words = { contributed: "Sent a masked update in round", model: "Learned from round", ended: "The task is" };
const show = (id, text) => (document.getElementById(id).textContent = text);
const load = async (path, sent) => {
  const answer = await fetch(path, sent && { method: "POST", body: JSON.stringify(sent) });
  return answer.ok ? answer.json() : Promise.reject(new Error(await answer.text()));
};

const { server: url, invitation, organiser } = await load("settings.json"); // comes with the app, not from HushRec's server
const films = await load("films.json");
const boxes = films.map(({ title }) => {
  const label = document.getElementById("films").appendChild(document.createElement("label"));
  const box = label.appendChild(Object.assign(document.createElement("input"), { type: "checkbox" }));
  label.append(` ${title} `);
  return box;
});
const liked = () => [...boxes.keys()].filter((item) => boxes[item].checked);

async function takePart() {
  const issue = (request) => load("/v1/certificates", request); // the app's own login stands before it
  const policy = { ...POLICY, trustModels: true }; // what this gives away: docs/security.md
  const store = await IndexedStore.open("films");
  const on = async (event) => {
    if (event.reason ?? words[event.kind]) show("status", event.reason ?? `${words[event.kind]} ${event.state ?? event.round}`);
    if (event.kind !== "model") return;
    const picks = await client.recommend(5, liked());
    document.getElementById("picks").replaceChildren(...picks.map(({ item }) => Object.assign(document.createElement("li"), { textContent: films[item].title })));
  };
  const client = await Participant.join({ url, invitation, organiser, issue, policy, store, on });
  await client.takePart(liked);
}
document.getElementById("start").onclick = () => takePart().catch((error) => show("status", error.message));
