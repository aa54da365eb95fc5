/** Byte for byte the same as Python: tests/vectors is made by scripts/make_vectors.py and read by both. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { keys, laws, randomness, reports, rules, samplers, words } from "./agreement.js";

test("reports are the same bytes for the same tapes", async () => {
  const { checked, wrong } = await reports();
  assert.equal(wrong, undefined);
  assert.ok(checked >= 10_000, `only ${checked} vectors`);
});

test("keys have the same ids, signs, codes and buckets", async () => {
  const { checked, wrong } = await keys();
  assert.equal(wrong, undefined);
  assert.ok(checked >= 150, `only ${checked} keys`);
});

test("untidy records are treated alike", async () => {
  const { checked, wrong } = await rules();
  assert.equal(wrong, undefined);
  assert.ok(checked >= 200, `only ${checked} rows`);
});

test("samplers make the same of the same tapes", async () => {
  const { checked, wrong } = await samplers();
  assert.equal(wrong, undefined);
  assert.ok(checked >= 300, `only ${checked} rows`);
});

test("words are added, multiplied and shifted as they should be", async () => {
  assert.equal((await words()).wrong, undefined);
});

test("coins and seeds are what the operating system gives", async () => {
  assert.equal((await randomness()).wrong, undefined);
});

test("small reports have the same laws", async () => {
  const { checked, wrong } = await laws();
  assert.equal(wrong, undefined);
  assert.ok(checked >= 30, `only ${checked} laws`);
});
