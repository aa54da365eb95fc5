/** A one-bit change in what makes a report does not go unnoticed. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { survivors } from "./mutants.js";

test("every twentieth number, with its last bit flipped, makes a vector fail", async () => {
  const { tried, survived } = await survivors(20);
  assert.ok(tried >= 15, `only ${tried} were tried`);
  assert.deepEqual(survived, []);
});
