/** Vectors of encodings, randomness, terms, requests and identities. */

import * as canonical from "../../examples/web/hushrec/canonical.js";
import { completed } from "../../examples/web/hushrec/labels.js";
import * as catalogue from "../../examples/web/hushrec/catalogue.js";
import * as certs from "../../examples/web/hushrec/identities.js";
import * as codec from "../../examples/web/hushrec/codec.js";
import * as domain from "../../examples/web/hushrec/domain.js";
import * as fixed from "../../examples/web/hushrec/fixed_point.js";
import * as http from "../../examples/web/hushrec/http_signature.js";
import * as sealing from "../../examples/web/hushrec/sealing.js";
import * as random from "../../examples/web/hushrec/random.js";
import { fromHex, toHex } from "../../examples/web/hushrec/codec.js";
import { digest } from "../../examples/web/hushrec/domain.js";
import { publicOf } from "../../examples/web/hushrec/keys.js";
import { checkReceipt, contradict, isLeaf, treeRoot } from "../../examples/web/hushrec/receipts.js";
import { sameState } from "../../examples/web/hushrec/model.js";
import { decodeState } from "../../examples/web/hushrec/recipes.js";
import { allParameters } from "../../examples/web/hushrec/terms.js";
import { hexes, near, refused, same } from "./checks.mjs";

const part = ([kind, value]) => ({ str: () => value, int: () => value, bytes: () => fromHex(value) })[kind]();

export const RUNNERS = {
  async "pace.json"({ windows, rests }) {
    const longest = (seconds) => Math.min(seconds / 2, 600);
    for (const { seed, client_id, clients, rate, stage_seconds, seconds } of windows) {
      const spread = clients > 10 * rate && rate ? Math.min(clients / rate, longest(stage_seconds)) : 0;
      const head = new DataView((await digest("window", fromHex(seed), client_id)).buffer).getBigUint64(0);
      same(spread * (Number(head >> 11n) / 2 ** 53), seconds);
    }
    for (const { members, rate, stage_seconds, unit, seconds } of rests) {
      const mean = rate ? Math.min(members / rate, longest(stage_seconds) / 1.5) : 0;
      same(Math.max(5, mean * (0.5 + unit)), seconds);
    }
  },
  async "codec.json"({ pack, base64 }) {
    for (const { chunks, packed } of pack) {
      same(toHex(codec.pack(...hexes(chunks))), packed);
      const reader = new codec.Reader(fromHex(packed));
      same(chunks.map(() => toHex(reader.chunk(100))), chunks);
      reader.finish();
    }
    for (const { body, text, error } of base64) {
      if (error) await refused(error, () => codec.fromBase64Url(text), text);
      else same([codec.toBase64Url(fromHex(body)), toHex(codec.fromBase64Url(text))], [text, body]);
    }
    for (const text of [0, null, [], {}]) await refused("CodecError", () => codec.fromBase64Url(text), String(text));
  },

  async "domain.json"({ secret, cases }) {
    for (const { purpose, context, error, ...expected } of cases) {
      const parts = context.map(part);
      if (error) await refused(error, () => domain.tag(purpose, ...parts));
      else {
        same(toHex(domain.tag(purpose, ...parts)), expected.tag);
        same(toHex(await digest(purpose, ...parts)), expected.digest);
        same(toHex(await domain.deriveKey(fromHex(secret), 48, purpose, ...parts)), expected.key);
      }
    }
  },

  async "expand.json"({ seed, cases }) {
    for (const { purpose, ...expected } of cases) {
      same((await random.words(fromHex(seed), purpose, 9)).map(String), expected.words);
      same(await random.uniforms(fromHex(seed), purpose, 4), expected.uniforms);
      near(await random.normals(fromHex(seed), purpose, 5), expected.normals);
      same(await random.permutation(fromHex(seed), purpose, 10), expected.permutation);
    }
  },

  async "fixed_point.json"({ encode, sum, budget }) {
    for (const { values, bits, scale, clip, elements, clipped } of encode) {
      const found = fixed.encode(values, bits, scale, clip);
      same([found.elements.map(String), found.clipped], [elements, clipped]);
    }
    for (const { bits, scale, summands, total, decoded } of sum) {
      const sums = total.map((_, i) => BigInt.asUintN(bits, summands.reduce((all, row) => all + BigInt(row[i]), 0n)));
      same(sums.map(String), total);
      same(fixed.decode(sums, bits, scale), decoded);
    }
    for (const { bits, bound, scale, error } of budget) await refused(error, () => fixed.checkBudget(bits, bound, scale));
  },

  async "canonical_json.json"({ numbers, values, refused: wrong }) {
    for (const { value, canonical: text } of [...numbers, ...values]) same(canonical.canonicalJson(value), text);
    same(wrong.length, 3);
    await refused(wrong[2].error, () => canonical.canonicalJson("\ud800"));
  },

  async "model_digest.json"({ cases }) {
    for (const one of cases) {
      const snapshot = one.snapshot_digest && fromHex(one.snapshot_digest);
      const parameters = { recipe: allParameters(one.task.recipe), mechanism: allParameters(one.task.mechanism) };
      const bound = canonical.boundTerms(one.task, parameters);
      same(bound, one.terms);
      same(toHex(canonical.broadcastBytes(one.sum_index, snapshot, one.levels)), one.broadcast);
      same(toHex(await canonical.modelDigest(bound, one.sum_index, snapshot, one.levels)), one.model_digest);
    }
  },

  async "catalogue.json"({ cases, refused: wrong, bound, scores }) {
    for (const { ids, titles, labels, body, digest: expected } of cases) {
      const own = (number) => (labels ? [...labels[number]].sort() : []);
      const items = ids.map((id, number) => ({ id, title: titles[number], labels: own(number) }));
      same(toHex(catalogue.encodeCatalogue(items)), body);
      same(catalogue.decodeCatalogue(fromHex(body)), items);
      same(await catalogue.catalogueDigest(fromHex(body)), expected);
    }
    for (const { body, error } of wrong) await refused(error, () => catalogue.decodeCatalogue(fromHex(body)));
    for (const one of scores) near(completed(one.scores, one.known, one.item_labels), one.completed);
    for (const one of bound) {
      const parameters = { recipe: allParameters(one.task.recipe), mechanism: allParameters(one.task.mechanism) };
      const terms = canonical.boundTerms(one.task, parameters);
      same(terms, one.terms);
      same(toHex(await canonical.modelDigest(terms, one.sum_index, null)), one.model_digest);
    }
  },

  async "http_signature.json"({ signed, refused: wrong }) {
    for (const one of signed) {
      const found = await http.signRequest(fromHex(one.private_key), one.client_id, one, one.created);
      same(found, { "signature-input": one.signature_input, signature: one.signature });
      const key = fromHex(one.public_key);
      same(await http.verifyRequest(key, one.client_id, one, one.signature_input, one.signature), one.created);
    }
    for (const one of wrong) {
      const key = fromHex(one.public_key);
      await refused(one.error, () => http.verifyRequest(key, one.client_id, one, one.signature_input, one.signature), one.why);
    }
  },

  async "certificates.json"({ certificates, revocations }) {
    for (const one of certificates) {
      const parts = hexes([one.identity_key, one.mailbox_key, one.certificate]);
      const check = () => certs.checkCertificate(fromHex(one.organiser_key), one.scope, ...parts, one.now);
      if (one.error) await refused(one.error, check);
      else {
        const { role, serial, notAfter } = await check();
        same([role, String(serial), Number(notAfter)], [one.role, one.serial, one.not_after]);
      }
    }
    for (const one of revocations) {
      const check = () => certs.checkRevocations(fromHex(one.organiser_key), one.scope, fromHex(one.list));
      if (one.error) await refused(one.error, check);
      else {
        const { issuedAt, serials } = await check();
        same([Number(issuedAt), serials.map(String)], [one.issued_at, one.serials]);
      }
    }
  },

  async "sealing.json"({ keys, sealed, refused: failing }) {
    const coins = (key) => digest("vector coins", key);
    for (const one of keys) {
      const { key, name } = await sealing.sealingKey(fromHex(one.seed));
      same([toHex(key), toHex(name)], [one.key, one.name]);
    }
    for (const one of sealed) {
      const secret = fromHex(one.sender_secret);
      const sender = { secret, key: await publicOf("X25519", secret) };
      const own = await sealing.sealingKey(fromHex(one.seed));
      const parts = ["vector sealing", ...one.context];
      same(toHex(await sealing.seal(sender, own.key, fromHex(one.plain), coins, ...parts)), one.sealed);
      same(toHex(await sealing.unseal(own, sender.key, fromHex(one.sealed), ...parts)), one.plain);
    }
    for (const { what, seed, sender, sealed: body, context, receiver } of failing) {
      if (receiver) {
        const from = { secret: fromHex(seed), key: await publicOf("X25519", fromHex(seed)) };
        await refused("CodecError", () => sealing.seal(from, fromHex(receiver), new Uint8Array(1), coins, "vector sealing"));
        continue;
      }
      const own = await sealing.sealingKey(fromHex(seed));
      same(await sealing.unseal(own, fromHex(sender), fromHex(body), "vector sealing", ...context), null, what);
    }
  },

  async "envelope.json"({ envelopes, snapshots }) {
    for (const one of envelopes) {
      const mailbox = await sealing.sealingKey(fromHex(one.mailbox_secret));
      const check = () => certs.openEnvelope(fromHex(one.envelope), mailbox, one.task);
      if (one.error) await refused(one.error, check);
      else {
        const { body, sender } = await check();
        same([toHex(body), toHex(sender.slice(0, 32))], [one.body, one.sender]);
      }
    }
    for (const one of snapshots) {
      const check = () => certs.openSnapshot(fromHex(one.sealed), fromHex(one.state_key), one.task, one.round);
      if (one.error) await refused(one.error, check);
      else {
        const { state, chain } = await check();
        same([toHex(state), toHex(chain)], [one.state, one.chain]);
      }
    }
  },

  async "aggregate_chains.json"({ task, links, stated, compared, refused: wrong }) {
    same(toHex(await certs.firstChain(task)), links[0].before);
    for (const { before, round, sha256: aggregate, state_sha256: state, digest: after } of links) {
      same(toHex(await certs.nextChain(fromHex(before), round, fromHex(aggregate), fromHex(state))), after);
    }
    const check = (one) => certs.statedChain(one, fromHex(one.identity_key), one.task, one.round);
    for (const one of compared) {
      const [own, server] = [one.own, one.server].map((body) => decodeState(fromHex(body), 2, 2, false));
      same(sameState(own, server), one.same);
    }
    for (const one of stated) same(toHex((await check(one)).chain), one.fields["aggregate-chain"]);
    for (const one of wrong) await refused(one.error, () => check(one), one.why);
  },

  async "receipts.json"({ trees, receipts, refused: wrong, compared }) {
    for (const { leaves, root, paths } of trees) {
      const found = hexes(leaves);
      same(toHex(await treeRoot(found)), root);
      for (const [index, path] of paths.entries()) {
        same(await isLeaf(found[index], index, found.length, hexes(path), fromHex(root)), true);
        same(await isLeaf(found[index], index + 1, found.length, hexes(path), fromHex(root)), false);
      }
    }
    for (const one of receipts) {
      same(await checkReceipt(one.receipt), { verdict: one.verdict, certified: one.certified }, one.what);
      same(toHex(await digest("person", codec.fromBase64Url(one.receipt.identity_key))), one.leaf);
    }
    for (const one of wrong) await refused(one.error, () => checkReceipt(one.receipt), one.what);
    for (const { first, second, lie, what } of compared) {
      for (const one of [first, second]) await checkReceipt(one);
      same(contradict(first, second), lie, what);
    }
  },

  async "keyring.json"({ cases, refused: wrong }) {
    for (const one of cases) {
      const keyring = certs.decodeKeyring(fromHex(one.body));
      same(toHex(certs.encodeKeyring(keyring)), one.body);
      same([keyring.mechanism, toHex(keyring.secretKey), toHex(keyring.stateKey)], [one.mechanism, one.secret_key, one.state_key]);
      same(await certs.fingerprint(keyring), one.fingerprint);
    }
    for (const one of wrong) await refused(one.error, () => certs.decodeKeyring(fromHex(one.body)), one.what);
  },

  async "enrolment.json"({ invitation, identity_secret, identity_key, mailbox_key, cases }) {
    const given = [invitation, ...hexes([identity_key, mailbox_key])];
    for (const { group, certificate, renewal, message, signature } of cases) {
      const parts = [...given, group, certificate && fromHex(certificate), renewal];
      same(toHex(certs.enrolmentMessage(...parts)), message);
      same(toHex(await certs.signEnrolment(fromHex(identity_secret), ...parts)), signature);
    }
  },
};
