/** The item catalogue of a task: the app's own id, the title and labels of each item number (docs/wire/terms.md). */

import { concat, toHex, utf8 } from "./codec.js";
import { CodecError } from "./errors.js";

const MOST_BYTES = { id: 256, title: 1024, label: 1024, labels: 1024 };
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;

function check(what, text, line) {
  const wrong = CONTROL.test(text) || utf8(text).length > MOST_BYTES[what];
  if (wrong) throw new CodecError(`line ${line} of the catalogue: the ${what} is too long, or has a control character`);
}

const ascending = (one, other) => {
  const [a, b] = [utf8(one), utf8(other)];
  const at = a.findIndex((byte, i) => byte !== b[i]);
  return at < 0 ? a.length < b.length : at >= b.length ? false : a[at] < b[at];
};

/** [{ id, title, labels }, ...] in order of the item numbers, from the bytes that a server or a file has. */
export function decodeCatalogue(body) {
  if (!body.length) throw new CodecError("a catalogue has at least one item");
  const items = [];
  const known = new Set();
  for (let start = 0; start < body.length; ) {
    const line = items.length + 1;
    const refuse = (why) => {
      throw new CodecError(`line ${line} of the catalogue: ${why}`);
    };
    const end = body.indexOf(10, start);
    if (end < 0) refuse("it does not end with a line feed");
    let text;
    try {
      // without ignoreBOM a byte order mark would be dropped, and with it a character of the id
      text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body.subarray(start, end));
    } catch {
      refuse("not UTF-8");
    }
    const [id, title, ...labels] = text.split("\t");
    if (title === undefined) refuse("no tab between id and title");
    if (!id || known.has(id)) refuse("the id is empty, or that of an earlier line");
    check("id", id, line);
    check("title", title, line);
    for (const label of labels) check("label", label, line);
    if (labels.some((label, i) => !label || (i && !ascending(labels[i - 1], label)))) refuse("labels do not ascend");
    if (labels.reduce((sum, label) => sum + utf8(label).length + 1, 0) > MOST_BYTES.labels) refuse("the labels are too long");
    known.add(id);
    items.push({ id, title, labels });
    start = end + 1;
  }
  return items;
}

export const encodeCatalogue = (items) => concat(...items.map(({ id, title, labels }) => utf8(`${[id, title, ...labels].join("\t")}\n`)));

/** SHA-256 of the encoded catalogue, hex: the `catalogue_digest` of its task. */
export const catalogueDigest = async (body) => toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", body)));
