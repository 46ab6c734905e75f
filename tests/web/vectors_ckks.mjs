/** Vectors of CKKS encryption. */

import * as ckks from "../../examples/web/hushrec/ckks.js";
import * as encryption from "../../examples/web/hushrec/ckks_encryption.js";
import { concat, fromHex, littleEndian, toHex } from "../../examples/web/hushrec/codec.js";
import { digest } from "../../examples/web/hushrec/domain.js";
import { CodecError } from "../../examples/web/hushrec/errors.js";
import { refused, same } from "./checks.mjs";

/** Bytes that stand for a label, as `about` says. */
async function drawn(label, count) {
  const blocks = Array.from({ length: Math.ceil(count / 32) }, (_, i) => digest("vector ckks", label, i));
  return concat(...(await Promise.all(blocks))).slice(0, count);
}
const ones = (bits) => bits.toString(2).replaceAll("0", "").length;
const ternary = async (label, degree) => Array.from(await drawn(label, degree), (byte) => BigInt((byte % 3) - 1));
const noise = async (label, degree) => Array.from(await drawn(label, degree), (byte) => BigInt(ones(byte & 15) - ones(byte >> 4)));

export const RUNNERS = {
  async "ckks_seeds.json"({ roots, cases }) {
    for (const { set, degree, root } of roots) same(String(encryption.smallestRoot(set, degree)), root);
    for (const { set, degree, seed, first, last, digest: expected } of cases) {
      const found = encryption.expandSeed(fromHex(seed), set, degree);
      same([found.slice(0, 4), found.slice(-4)].map((some) => some.map(String)), [first, last]);
      same(toHex(await digest("vector", ckks.encodePlanes(found, set))), expected);
    }
  },

  async "ckks_keys.json"({ layout, cases }) {
    const clips = layout.flatMap(({ length, clip }) => new Array(length).fill(clip));
    const counts = layout.flatMap(({ length, integral }) => new Array(length).fill(integral));
    for (const { set, degree, contributions, scale, parameter_id, clients, ...shown } of cases) {
      same(toHex(await digest("ckks parameters", degree, ckks.SETS[set].modulus)), parameter_id);
      same(ckks.scaleOf(set, contributions), scale);
      const secret = encryption.readKey(fromHex(shown.secret_key), set, degree);
      same(secret.map(String), encryption.toResidues(await ternary("secret", degree), set).map(String));
      const open = (ciphertext, places) => {
        const values = encryption.decode(encryption.decrypt(ciphertext, secret, set), scale, clips.length);
        return values.map((x, i) => (counts[i] ? Math.round(x * clips[i]) : Math.round(x * clips[i] * places) / places) + 0);
      };
      const encoded = async (values, label) => {
        const m = encryption.encode(values.map((x, i) => x / clips[i]), scale, degree);
        const errors = await noise(label, degree);
        return { m, residues: encryption.toResidues(m.map((c, i) => c + errors[i]), set) };
      };
      const sent = [];
      for (const [at, { values, coefficients, seed, body }] of clients.entries()) {
        const { m, residues } = await encoded(values, `client ${at}`);
        // the last bits of a coefficient depend on the platform's cosine
        same(coefficients.every((c, i) => Number(BigInt(c) - m[i]) ** 2 <= 1 + (scale * 2 ** -45) ** 2), true);
        const made = encryption.encodeSeeded([encryption.encryptSeeded(residues, secret, fromHex(seed), set)], set);
        if (scale < 2 ** 40) same(toHex(made), body);
        sent.push(...encryption.readSeeded(fromHex(body), set, degree, 1));
      }
      const total = encryption.addCiphertexts(sent, set);
      same(toHex(await digest("vector", ckks.encodePlanes(total.flat(), set))), shown.aggregate_digest);
      same(open(total, 1e3), shown.opened);

      const size = degree * ckks.residueBytes(set);
      const [high, good] = [new Uint8Array(size).fill(255), fromHex(clients[0].body)];
      const bodies = { short: good.slice(1), long: concat(good, littleEndian(0, 1)), "residues not below q": concat(high, good.slice(size)) };
      for (const { what, error } of shown.refused) {
        const wrong = what.endsWith("short") ? new Uint8Array(size - 1) : high;
        if (bodies[what]) await refused(error, () => encryption.readSeeded(bodies[what], set, degree, 1), what);
        else if (error === "KeyringError") await refused(error, () => encryption.readKey(wrong, set, degree), what);
        else await refused(CodecError.name, () => encryption.decrypt([total[0], total[1].map(() => 0n)], secret, set), what);
      }
    }
  },
};
