/** The client as pages use it: records of all kinds, large ones, and coins that are never given. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, type DeviceRecord, Refused } from "../src/index.js";
import { taskOf, vectors } from "./tape.js";

const documents = (vectors("reports.json").tasks as { document: string }[]).map((row) => row.document);
const named = (name: string): string =>
  documents.find((document) => JSON.parse(document).name === name) ?? "";

test("a record may be an object, a map, a list, a set or a generator", async () => {
  const client = new Client(await taskOf(named("collision over sized keys")));
  function* some(): Generator<string> {
    yield "1";
    yield "2";
  }
  const bare = Object.assign(Object.create(null), { 1: 1, 2: true });
  const records: DeviceRecord[] = [
    { 1: 1, 2: 1 },
    bare,
    new Map([[1, 1]]).set(2, 1),
    [1, "2"],
    new Set([1n, 2n]),
    some(),
  ];
  for (const record of records) client.report(record);
  assert.deepEqual(client.summary, {
    records: records.length,
    entries: 2 * records.length,
    clipped: 0,
    absent: 0,
    unknown: 0,
    unreadable: 0,
    sampledRecords: 0,
    droppedEntries: 0,
  });
});

test("what is no record is refused, and nothing is counted", async () => {
  const client = new Client(await taskOf(documents[0]));
  const none = [
    "page",
    1,
    null,
    undefined,
    new Uint8Array(2),
    new Date(),
    /x/,
    () => 1,
    Symbol("x"),
    Promise.resolve(),
  ];
  for (const wrong of none) {
    assert.throws(() => client.report(wrong as unknown as DeviceRecord), /this is neither/);
    assert.throws(() => client.report(wrong as unknown as DeviceRecord), Refused);
  }
  assert.equal(client.summary.records, 0);
});

test("a value that cannot be asked for is left out, and the report is made", async () => {
  const client = new Client(await taskOf(named("collision over sized keys")));
  const record = { 1: 1, 2: 1 };
  Object.defineProperty(record, "3", {
    enumerable: true,
    get() {
      throw new Error("no");
    },
  });
  client.report(record);
  assert.equal(client.summary.unreadable, 1);
  assert.equal(client.summary.entries, 2);
});

test("a million entries make one small report", async () => {
  for (const [name, entries] of [
    ["collision over wide keys", 1_000_000],
    ["sparse_sum over cohorts keys", 100_000],
    ["privkv over sized keys", 100_000],
  ] as const) {
    const task = await taskOf(named(name));
    const client = new Client(task);
    const keys = Array.from({ length: entries }, (_, key) => String(key));
    assert.equal(client.report(keys).length, task.reportBytes, name);
    assert.equal(client.summary.entries + client.summary.unknown, entries);
  }
});

// False alarms: every report has at least two outcomes of probability 1/3 or less, so below 1e-18 each.
test("reports differ, whatever the record", async () => {
  for (const document of documents) {
    const task = await taskOf(document);
    const client = new Client(task);
    const reports = new Set(Array.from({ length: 40 }, () => client.report({ 1: 1 }).join()));
    assert.ok(reports.size > 1, task.name);
  }
});
