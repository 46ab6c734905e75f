/** Vectors of plain, Paillier and CKKS sums and of the encryption of CKKS, of recipes and of plans. */

import * as ckks from "../../examples/web/hushrec/ckks.js";
import * as codec from "../../examples/web/hushrec/codec.js";
import * as encryption from "../../examples/web/hushrec/ckks_encryption.js";
import * as fixed from "../../examples/web/hushrec/fixed_point.js";
import * as hood from "../../examples/web/hushrec/neighbourhood.js";
import * as paillier from "../../examples/web/hushrec/paillier.js";
import * as plain from "../../examples/web/hushrec/plain.js";
import * as random from "../../examples/web/hushrec/random.js";
import * as recipes from "../../examples/web/hushrec/recipes.js";
import { concat, fromHex, littleEndian, toHex } from "../../examples/web/hushrec/codec.js";
import { digest } from "../../examples/web/hushrec/domain.js";
import { CodecError, ParameterError } from "../../examples/web/hushrec/errors.js";
import * as masked from "../../examples/web/hushrec/masked.js";
import { openGroups, splitClients, useGroups } from "../../examples/web/hushrec/groups.js";
import { normOfSum, requirePossible } from "../../examples/web/hushrec/possible.js";
import { near, refused, same } from "./checks.mjs";

/** Bytes that stand for a label, as `about` says. */
async function drawn(label, count) {
  const blocks = Array.from({ length: Math.ceil(count / 32) }, (_, i) => digest("vector ckks", label, i));
  return concat(...(await Promise.all(blocks))).slice(0, count);
}
const ones = (bits) => bits.toString(2).replaceAll("0", "").length;
const ternary = async (label, degree) => Array.from(await drawn(label, degree), (byte) => BigInt((byte % 3) - 1));
const noise = async (label, degree) => Array.from(await drawn(label, degree), (byte) => BigInt(ones(byte & 15) - ones(byte >> 4)));

export const RUNNERS = {
  async "plain.json"({ fold, check }) {
    for (const { contributions, values, aggregate } of fold) {
      const total = [new Array(3).fill(0), new Array(3).fill(0)];
      contributions.forEach(({ route, body }, at) => {
        same(toHex(plain.seal(values[at])), body);
        const sent = plain.fromFloats(fromHex(body));
        route.forEach((targets, first) => {
          for (const target of targets) for (let i = 0; i < 3; i++) total[target][i] += sent[3 * first + i];
        });
      });
      same(toHex(plain.toFloats(total.flat())), aggregate);
    }
    const bounds = [0.5, 0.5, 1, 0.5, 0.5, 1];
    for (const { body, error, what } of check) await refused(error, () => plain.check(fromHex(body), bounds), what);
  },

  async "possible_sums.json"({ cases }) {
    for (const { what, error, segments, bits, cohort, contributions, total, errors, norms } of cases) {
      const own = segments.map((one) => ({ ...one, error: fixed.segmentError(one, fixed.segmentScale(bits, one, cohort), cohort) }));
      const check = () => requirePossible(own, total, contributions);
      if (error) {
        await refused(error, check, what);
        continue;
      }
      check();
      near(own.map((one) => one.error), errors, what);
      const longest = own.map((one) => normOfSum(one, contributions));
      near(longest.map((one) => (one === Infinity ? -1 : one)), norms.map((one) => one ?? -1), what);
    }
  },

  async "groups.json"({ used, splits, sums }) {
    for (const { what, error, sums: of, clients, tau, row, ...expected } of used) {
      if (error) {
        await refused(error, () => useGroups(of, clients, tau, row), what);
        continue;
      }
      const found = useGroups(of, clients, tau, row);
      same(Object.keys(found).sort(), Object.keys(expected).sort(), what);
      for (const [name, value] of Object.entries(expected)) near([found[name]].flat(), [value].flat(), `${what}: ${name}`);
    }
    for (const { task, clients, groups, members } of splits) {
      const split = await splitClients(task, clients, groups);
      same(split.map((places) => places.map((place) => clients[place]).sort()), members, task);
    }
    for (const { what, error, segments, bits, cohort, groups, tau, counts, elements, body, scales, total } of sums) {
      const inGroup = cohort / groups;
      const own = segments.map((one) => {
        const scale = fixed.segmentScale(bits, one, inGroup);
        return { ...one, scale, error: fixed.segmentError(one, scale, inGroup) };
      });
      const plan = { segments: own, bits, length: elements[0].length, groups, tau, inGroup };
      const parts = elements.map((of, i) => concat(littleEndian(counts[i], 8), fixed.packElements(of.map(BigInt), bits)));
      const check = () => openGroups(plan, concat(...parts), counts.reduce((sum, count) => sum + count));
      if (error) {
        await refused(error, check, what);
        continue;
      }
      same([toHex(concat(...parts)), own.map(({ scale }) => scale)], [body, scales], what);
      near(check(), total, what);
    }
  },

  async "chosen.json"({ contributions }) {
    for (const { numbers, values, body } of contributions) same(toHex(plain.seal([values], numbers)), body);
  },

  async "ckks_wire.json"({ seeded, out_of_range }) {
    for (const { set, modulus, residues, seeds, body } of seeded) {
      same(String(ckks.SETS[set].modulus), modulus);
      const planes = ckks.encodePlanes(residues.flat().map(BigInt), set);
      same(toHex(planes) + seeds.join(""), body);
      same(ckks.decodePlanes(planes, set).map(String), residues.flat());
    }
    for (const { set, body, ciphertext } of out_of_range) {
      same(ckks.firstOutOfRange(ckks.decodePlanes(fromHex(body), set), set, 8), ciphertext);
    }
  },

  async "ckks_fold.json"({ fold }) {
    for (const { set, modulus, degree, rules, contribution_digests, partial_digest, count } of fold) {
      const size = 2 * degree;
      const sums = [0, 1].map(() => new Array(size).fill(0n));
      for (const [at, { route, factor, offset }] of rules.entries()) {
        const residues = Array.from({ length: size * route.length }, (_, i) => {
          const value = BigInt(factor) * BigInt(i + 1) * 2654435761n + BigInt(offset);
          return ((value % BigInt(modulus)) + BigInt(modulus)) % BigInt(modulus);
        });
        same(toHex(await digest("vector", ckks.encodePlanes(residues, set))), contribution_digests[at]);
        route.forEach((targets, first) => {
          for (const target of targets) ckks.addResidues(sums[target], residues.slice(first * size, (first + 1) * size), set);
        });
      }
      const partial = concat(fromHex(count), ckks.encodePlanes(sums.flat(), set));
      same(toHex(await digest("vector", partial)), partial_digest);
    }
  },

  async "paillier.json"({ p, q, scale, slots, contributions, partial, opened }) {
    const [P, Q] = [BigInt("0x" + p), BigInt("0x" + q)];
    const n = P * Q;
    const segments = [
      { length: 53, clip: 0.5, integral: false },
      { length: 2, clip: 3, integral: true },
    ];
    const own = paillier.slotsOf(segments, 2048, 32, 60);
    same(own.map((slot) => slot.slice(0, 3)), slots);
    same(own[0][3], scale);
    const rows = own.at(-1)[0] + 1;
    const products = [0, 1].map(() => new Array(rows).fill(1n));
    for (const { route, values, plaintexts, r, body } of contributions) {
      const packed = values.flatMap((block) => paillier.packValues(block, own));
      same(packed.map(String), plaintexts);
      const ciphertexts = packed.map((m, i) => paillier.encrypt(m, BigInt("0x" + r[i]), n));
      same(toHex(paillier.encodeBody(n, ciphertexts, 2048)), body);
      same(paillier.decodeBody(fromHex(body), ciphertexts.length, 2048).ciphertexts.map(String), ciphertexts.map(String));
      route.forEach((targets, first) => {
        for (const target of targets) {
          for (let row = 0; row < rows; row++) {
            products[target][row] = (products[target][row] * ciphertexts[first * rows + row]) % (n * n);
          }
        }
      });
    }
    same(toHex(concat(codec.littleEndian(2, 8), paillier.encodeBody(n, products.flat(), 2048))), partial);
    const found = products.flatMap((block) => paillier.unpackValues(block.map((c) => paillier.decrypt(c, P, Q)), own, n));
    same(found, opened);
  },

  async "derived.json"({ task_seed, initial_factors, rank, dim, most_levels, rounds }) {
    const seed = fromHex(task_seed);
    near(await recipes.initialFactors(seed, 3, 4), initial_factors);
    for (const { number, seed: own, levels, projection } of rounds) {
      const found = await recipes.roundSeed(seed, number);
      same(toHex(found), own);
      near(await recipes.projection(found, rank, dim), projection);
      for (const [client, level] of Object.entries(levels)) same(await recipes.clientLevel(found, client, most_levels), level);
    }
  },

  async "absorbed.json"({ task_seed, cases }) {
    for (const { recipe, resolved: p, initial, sums, refused: wrong } of cases) {
      const { items, dim } = p;
      const open = (hex) => recipes.decodeState(fromHex(hex), items, dim, p.item_bias === "counts");
      let state = open(initial);
      near(state.factors, await recipes.initialFactors(fromHex(task_seed), items, dim));
      for (const { round, clients, total, state: after } of sums) {
        const seed = await recipes.roundSeed(fromHex(task_seed), round);
        for (const { client, items: touched, rows, blocks } of clients) {
          if (!rows) continue;
          const width = rows[0].length;
          if (recipe === "scolr") {
            const edges = recipes.levelEdges(p);
            same(width, edges[await recipes.clientLevel(seed, client, edges.length - 1)]);
          }
          same(recipes.blocksOf(recipe, p, { items: touched, rows }, width), blocks, recipe);
        }
        if (clients[0].rows) state = await recipes.absorb(recipe, p, state, total, clients.length, seed);
        else state = recipes.absorbCounts(state, total, clients.length);
        near(state.factors, open(after).factors, recipe);
        same([state.counts, state.clients], [open(after).counts, open(after).clients]);
        same(recipes.encodeState(open(after)).length, fromHex(after).length);
      }
      for (const { what, state: body, error } of wrong) await refused(error, () => open(body), what);
    }
  },

  async "layouts.json"({ cases }) {
    for (const { blocks, length, chosen } of cases) {
      same(blocks.flatMap((block) => block.segments).reduce((sum, segment) => sum + segment.length, 0), length);
      same(chosen <= blocks.length, true);
    }
  },

  async "supports.json"({ seed, first, renewed }) {
    for (const { units, kept, support } of first) {
      const drawn = await random.permutation(fromHex(seed), "first support", units);
      same(drawn.slice(0, kept).sort((a, b) => a - b), support);
    }
    for (const { units, support, strongest, next } of renewed) {
      const held = strongest.slice(0, Math.floor(support.length / 2));
      const others = (await random.permutation(fromHex(seed), "support", units)).filter((unit) => !held.includes(unit));
      same([...held, ...others.slice(0, support.length - held.length)].sort((a, b) => a - b), next);
    }
  },

  async "plans.json"({ layouts, cases }) {
    const blocks = { rows: ["items", "items"], "two blocks": ["a", "b"] };
    for (const { layout, mechanism, parameters, contributions, scales } of cases) {
      const found = {};
      layouts[layout].forEach((segment, at) => {
        const bits = parameters.bits ?? { masked: 32, oneshot: 28 }[mechanism];
        const scale = {
          plain: () => undefined,
          masked: () => fixed.segmentScale(bits - (parameters.spare ?? 0), segment, contributions),
          oneshot: () => fixed.segmentScale(bits, segment, contributions),
          paillier: () => paillier.slotCode(segment, 32, contributions).scale,
          ckks: () => ckks.scaleOf(parameters.set ?? "standard", contributions, 2048) / segment.clip,
        }[mechanism]();
        if (scale) found[`${blocks[layout][at]}/${segment.name}`] = scale;
      });
      same(found, scales, mechanism);
    }
  },

  async "neighbourhoods.json"({ cases }) {
    for (const { what, clients, corrupt, dropout, mode, sigma, eta, groups = 1, error, ...expected } of cases) {
      const choose = () => hood.chooseNeighbourhood(clients, corrupt, dropout, mode, sigma, eta, groups);
      if (error) await refused(error, choose, what);
      else same({ ...choose(), quorum: hood.quorum(corrupt, clients, groups, sigma) }, expected);
    }
  },

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
