/** Byte for byte the same as Python: tests/vectors is made by scripts/make_vectors.py and read by both. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { keys, reports, rules } from "./agreement.js";

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
