/** The same as in Python: tests/vectors/delivery.json, made by scripts/make_delivery_vectors.py. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { blake2b } from "../src/blake2b.js";
import { fromHex, toHex } from "../src/bytes.js";
import { judge } from "../src/delivery.js";
import { periodOf } from "../src/periods.js";
import { sealedBytes } from "../src/sealing.js";
import { envelope } from "../src/uploader.js";
import { madeUp, task, VECTORS } from "./shared/io.js";

test("hashes and names of keys", () => {
  for (const [size, digest] of VECTORS.hashes) assert.equal(toHex(blake2b(madeUp(size), 16)), digest);
  for (const [key, name] of VECTORS.keys) {
    assert.equal(toHex(blake2b(fromHex(key)!, 4, "hubbub key id")), name);
  }
});

test("periods of days", () => {
  assert.ok(VECTORS.periods.length > 400);
  for (const [day, once, date, week, month] of VECTORS.periods) {
    const [year, number, dayOfMonth] = day.split("-").map(Number);
    for (const hour of [0, 12, 23]) {
      const moment = new Date(year, number - 1, dayOfMonth, hour, 59);
      assert.deepEqual(
        [
          periodOf("once", moment),
          periodOf("day", moment),
          periodOf("week", moment),
          periodOf("month", moment),
        ],
        [once, date, week, month],
      );
    }
  }
});

test("bodies of uploads and widths of sealed items", async () => {
  for (const [name, count, digest] of VECTORS.bodies) {
    const made = await task(name);
    const body = envelope(made, madeUp(count * made.reportBytes));
    assert.equal(createHash("sha256").update(body).digest("hex"), digest);
  }
  for (const [name, width] of Object.entries(VECTORS.sealed_bytes)) {
    assert.equal(sealedBytes(await task(name)), width);
  }
});

test("answers", () => {
  const verdicts = new Set<string>();
  for (const [status, media, body, verdict] of VECTORS.answers) {
    assert.equal(judge(status, media, body, VECTORS.batch), verdict, `${status} ${media} ${body}`);
    verdicts.add(verdict);
  }
  assert.equal(verdicts.size, 5);
});
