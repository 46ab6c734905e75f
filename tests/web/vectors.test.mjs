/** node --test tests/web/vectors.test.mjs: every file of tests/vectors with hushrec.js. */

import { readdirSync, readFileSync } from "node:fs";
import test from "node:test";
import assert from "node:assert/strict";
import { RUNNERS, run } from "./vectors.mjs";

const folder = new URL("../vectors/", import.meta.url);
const read = async (name) => JSON.parse(readFileSync(new URL(name, folder), "utf8"));
const files = readdirSync(folder).filter((name) => name.endsWith(".json"));

test("every file has a runner", () => assert.deepEqual(Object.keys(RUNNERS).sort(), files.sort()));
for (const name of files) test(name, async () => assert.ok((await run(name, read)) > 0));
