/** Signed requests: RFC 9421 in the profile of docs/wire/requests.md. */

import { fromBase64, toBase64, utf8 } from "./codec.js";
import { sha256 } from "./domain.js";
import { SignatureError } from "./errors.js";
import { sign, verify } from "./keys.js";

export const SIGNED_FIELDS = [
  "aggregate-chain",
  "content-digest",
  "repr-digest",
  "upload-complete",
  "upload-offset",
];
const LONGEST = 1024;
const LABEL = "[a-z*][a-z0-9_.*-]{0,31}";
const PARAMETER = String.raw`;([a-z]{1,16})=("[\x20\x21\x23-\x5b\x5d-\x7e]{0,128}"|0|[1-9][0-9]{0,14})`;
const INPUT = new RegExp(`^(${LABEL})=(\\(([^()]*)\\)((?:${PARAMETER})*))$`);
const SIGNED = new RegExp(`^(${LABEL})=:([A-Za-z0-9+/]{85}[AQgw]==):$`);
const AUTHORITY = /^(?:\[[0-9a-f:.]{2,45}\]|[a-z0-9._~-]{1,253})(?::[1-9][0-9]{0,4})?$/;
const VALUE = /^(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?$/;

/** request: {method, authority, path, query, fields}; fields by lower case name. Returns [component, value] pairs. */
function components({ method, authority, path, query, fields }) {
  if (!/^[A-Z]+$/.test(method)) throw new SignatureError("the method must be upper case letters");
  if (!AUTHORITY.test(authority)) throw new SignatureError("the authority must be a host and a port");
  if (!/^\/[\x21-\x7e]*$/.test(path)) throw new SignatureError("the path must be visible ASCII characters");
  if (!/^[\x21-\x7e]*$/.test(query)) throw new SignatureError("the query must be visible ASCII characters");
  const lines = [
    ["@method", method],
    ["@authority", authority],
    ["@path", path],
  ];
  if (query) lines.push(["@query", "?" + query]);
  for (const name of SIGNED_FIELDS) {
    if (!(name in fields)) continue;
    if (!VALUE.test(fields[name])) throw new SignatureError(`${name} is malformed`);
    lines.push([name, fields[name]]);
  }
  return lines;
}

const base = (lines, parameters) =>
  [...lines.map(([name, value]) => `"${name}": ${value}`), `"@signature-params": ${parameters}`].join("\n");

/** The two headers that sign a request. secret: Ed25519 key; created: seconds since the epoch. */
export async function signRequest(secret, clientId, request, created) {
  const lines = components(request);
  const covered = lines.map(([name]) => `"${name}"`).join(" ");
  const parameters = `(${covered});created=${created};keyid="${clientId}";tag="hushrec"`;
  const signature = await sign(secret, utf8(base(lines, parameters)));
  return { "signature-input": `hushrec=${parameters}`, signature: `hushrec=:${toBase64(signature)}:` };
}

/** The `created` of a signed request; `SignatureError` unless the client signed exactly this request. */
export async function verifyRequest(publicKey, clientId, request, signatureInput, signature) {
  if (signatureInput.length > LONGEST || signature.length > LONGEST) throw new SignatureError("a header is too long");
  const input = INPUT.exec(signatureInput);
  const signed = SIGNED.exec(signature);
  if (!input || !signed || input[1] !== signed[1]) throw new SignatureError("the signature headers are malformed");
  const lines = components(request);
  if (input[3] !== lines.map(([name]) => `"${name}"`).join(" ")) throw new SignatureError("other components are covered");
  const parameters = [...input[4].matchAll(new RegExp(PARAMETER, "g"))];
  const values = Object.fromEntries(parameters.map(([, name, value]) => [name, value]));
  const { alg = '"ed25519"', created = "", keyid, tag, ...others } = values;
  const fits = alg === '"ed25519"' && keyid === `"${clientId}"` && tag === '"hushrec"' && /^[0-9]+$/.test(created);
  if (!fits || Object.keys(others).length || Object.keys(values).length !== parameters.length) {
    throw new SignatureError("the parameters of the signature are not created, keyid and tag");
  }
  if (!(await verify(publicKey, fromBase64(signed[2]), utf8(base(lines, input[2]))))) {
    throw new SignatureError("the signature does not verify");
  }
  return Number(created);
}

/** The value of Content-Digest or Repr-Digest. */
export const contentDigest = async (body) => `sha-256=:${toBase64(await sha256(body))}:`;
