/** The item catalogue of a task: the app's own id, and the title, of each item number (docs/wire/terms.md). */

import { concat, toHex, utf8 } from "./codec.js";
import { CodecError } from "./errors.js";

const MOST_BYTES = { id: 256, title: 1024 };
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;

function check(what, text, line) {
  const wrong = CONTROL.test(text) || utf8(text).length > MOST_BYTES[what];
  if (wrong) throw new CodecError(`line ${line} of the catalogue: the ${what} is too long, or has a control character`);
}

/** [{ id, title }, ...] in order of the item numbers, from the bytes that a server or a file has. */
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
    const tab = text.indexOf("\t");
    if (tab < 0) refuse("no tab between id and title");
    const [id, title] = [text.slice(0, tab), text.slice(tab + 1)];
    if (!id || known.has(id)) refuse("the id is empty, or that of an earlier line");
    check("id", id, line);
    check("title", title, line);
    known.add(id);
    items.push({ id, title });
    start = end + 1;
  }
  return items;
}

export const encodeCatalogue = (items) => concat(...items.map(({ id, title }) => utf8(`${id}\t${title}\n`)));

/** SHA-256 of the encoded catalogue, hex: the `catalogue_digest` of its task. */
export const catalogueDigest = async (body) => toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", body)));
