/** Labels and periods: the same words as Python's (tests/vectors/labels.json), kept with a batch wherever it waits. */
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { blake2b } from "../src/blake2b.js";
import { fromHex, toHex } from "../src/bytes.js";
import { FileStore, Ledger, Refused, Task, Uploader } from "../src/node.js";
import { binding, sealedBytes } from "../src/sealing.js";
import { type Labels, labelsFrom, labelsText, prefixOf } from "../src/strata.js";
import { envelope, type UploaderOptions } from "../src/uploader.js";
import { Fake, freshPath, madeUp, own, task as plainTask } from "./shared/io.js";

interface Vectors {
  tasks: { [name: string]: string };
  sealed_bytes: { [name: string]: number };
  public_key: string;
  strata: [string, string, Labels, string, string, string, string][];
  refused: [string, Labels][];
}

const VECTORS: Vectors = JSON.parse(readFileSync("../../tests/vectors/labels.json", "utf8"));
const [W46, W47] = [new Date(2026, 10, 12), new Date(2026, 10, 18)];
const NOBODY = "http://127.0.0.1:9";
const task = (name: string): Promise<Task> => Task.parse(new TextEncoder().encode(VECTORS.tasks[name]));

function open(address: string, made: Task, path: string, more: Partial<UploaderOptions>): Uploader {
  return new Uploader(address, made, { store: new FileStore(path), ...more });
}

test("headers, first bytes of sealed reports and what they are bound to are Python's", async () => {
  const key = blake2b(fromHex(VECTORS.public_key)!, 4, "hubbub key id");
  for (const [name, , given, told, period, prefix, info] of VECTORS.strata) {
    const made = await task(name);
    const values = labelsFrom(made, given);
    assert.equal(labelsText(made, values), told);
    const bytes = prefixOf(made, period || "once", values);
    assert.equal(new TextDecoder().decode(bytes), prefix);
    assert.equal(toHex(binding(made, bytes, key)), info);
    assert.equal(sealedBytes(made), VECTORS.sealed_bytes[name]);
  }
  assert.ok(VECTORS.strata.length > 40);
});

test("labels that Python refuses are refused, and nothing is kept", async () => {
  for (const [name, labels] of VECTORS.refused) {
    const [made, path] = [await task(name), freshPath()];
    assert.throws(() => open(NOBODY, made, path, { labels }), Refused);
    const ledger = new Ledger(new FileStore(path));
    await assert.rejects(ledger.sealed(made, ["search"], madeUp(32), W46, labels), Refused);
    assert.equal(await ledger.spent(made), 0);
  }
  const plain = await plainTask("week");
  assert.throws(() => open(NOBODY, plain, freshPath(), { labels: { country: "de" } }), /it has none/);
  assert.deepEqual(plain.labels, {});
});

test("a batch keeps labels and period while pages with others come and go", async () => {
  const [made, path] = [await task("two_week"), freshPath()];
  const moves: [string, Date][] = [
    ["de", W46],
    ["fr", W46],
    ["fr", W47],
  ];
  for (const [country, day] of moves) {
    const uploader = open(NOBODY, made, path, { labels: { country, version: "1" } });
    await uploader.report(["search"], day);
    assert.equal(await uploader.report(["search"], day), false); // a person counts once, wherever he is
    uploader.close();
  }
  const fake = await new Fake().start();
  fake.answers = [own(503), (_, response) => void response.destroy()];
  const later = open(fake.address, made, path, { labels: { country: "IT", version: "2" } });
  assert.equal(await later.waiting(), 2);
  assert.ok(await later.flush());
  later.close();
  const said = new Map(fake.sent.map((each) => [each.batch, each.said]));
  assert.deepEqual([...said.values()].sort(), [
    ["country=de,version=1", "2026-W46"],
    ["country=fr,version=1", "2026-W47"],
  ]);
  for (const each of fake.sent) assert.deepEqual(each.said, said.get(each.batch));
});

test("halves of a batch are of its stratum, and so is what is refused", async () => {
  const [made, path, fake] = [await task("two_once"), freshPath(), await new Fake().start()];
  fake.answers = [own(413), own(200), own(422)];
  const first = open(NOBODY, made, path, { labels: { country: "fr", version: "1.0+a_b-c" } });
  await first.add(madeUp(4 * made.reportBytes));
  first.close();
  const uploader = open(fake.address, made, path, { labels: { country: "de", version: "1" } });
  assert.equal(await uploader.flush(), false);
  const told = "country=fr,version=1.0+a_b-c";
  assert.deepEqual(
    fake.sent.map(({ said }) => said),
    [0, 1, 2].map(() => [told, undefined]),
  );
  const [refused] = await uploader.refused();
  assert.equal(refused.labels, told);
  uploader.close();
});

test("what an earlier version left is sent without a word of labels or periods", async () => {
  const [week, path, fake] = [await plainTask("week"), freshPath(), await new Fake().start()];
  const reports = madeUp(3 * week.reportBytes);
  const old = {
    ledger: {},
    outbox: { [week.digest]: [{ id: "20261101-old", reports: toHex(reports) }] },
    refused: {},
  };
  writeFileSync(path, JSON.stringify(old));
  const uploader = open(fake.address, week, path, {});
  assert.ok(await uploader.flush());
  uploader.close();
  const [{ batch, body, said }] = fake.sent;
  assert.deepEqual([batch, said], ["20261101-old", [undefined, undefined]]);
  assert.deepEqual(body, envelope(week, reports));
});

test("a clock that was never set tells no period", async (context) => {
  const [week, fake] = [await plainTask("week"), await new Fake().start()];
  const uploader = open(fake.address, week, freshPath(), {});
  context.mock.timers.enable({ apis: ["Date"], now: 86_400_000 });
  await uploader.add(madeUp(week.reportBytes));
  await uploader.report(["search"]);
  await uploader.report(["search"], W46); // somebody knows the day
  context.mock.timers.reset();
  assert.ok(await uploader.flush());
  uploader.close();
  assert.deepEqual(fake.sent.map(({ said }) => said[1]).sort(), ["2026-W46", undefined, undefined]);
});

test("a task without labels and periods says nothing, and its book is as it was", async () => {
  const [once, path, fake] = [await plainTask("once"), freshPath(), await new Fake().start()];
  const away = open(NOBODY, once, path, {});
  await away.report(["search"]);
  away.close();
  const kept = JSON.parse(readFileSync(path, "utf8")).outbox[once.digest];
  assert.deepEqual(Object.keys(kept[0]), ["id", "reports"]);
  const uploader = open(fake.address, once, path, {});
  assert.ok(await uploader.flush());
  uploader.close();
  assert.deepEqual(fake.sent[0].said, [undefined, undefined]);
});

test("a book whose words cannot be sent is refused", async () => {
  const [once, path] = [await plainTask("once"), freshPath()];
  for (const words of [
    { labels: "a=b\r\nX: y" },
    { period: "2026-W46\n" },
    { labels: ["x y"] },
    { period: {} },
  ]) {
    const batch = { id: "1", reports: toHex(madeUp(once.reportBytes)), ...words };
    const text = JSON.stringify({ ledger: {}, outbox: { [once.digest]: [batch] }, refused: {} });
    writeFileSync(path, text);
    await assert.rejects(open(NOBODY, once, path, {}).waiting(), Refused);
    assert.equal(readFileSync(path, "utf8"), text);
  }
});

test("a sealed report says its labels in its first bytes, and keeps them", async () => {
  const [made, path, fake] = [await task("two_week"), freshPath(), await new Fake().start()];
  const sealedFor = new Uint8Array(await publicKey());
  for (const [country, day] of [
    ["de", W46],
    ["fr", W46],
    ["fr", W47],
  ] as [string, Date][]) {
    const uploader = open(fake.address, made, path, { labels: { country, version: "1" }, sealedFor });
    await uploader.report(["search"], day);
    assert.ok(await uploader.flush());
    const item = await uploader.ledger.sealed(made, ["print"], sealedFor, day, {
      country: "IT",
      version: "2",
    });
    assert.deepEqual(fake.sent.at(-1)!.body, item);
    uploader.close();
  }
  const text = fake.sent.map(({ body }) => new TextDecoder().decode(body.subarray(0, 12)));
  assert.deepEqual(text, ["2026-W460001", "2026-W470004"]);
  for (const each of fake.sent) assert.deepEqual(each.said, [undefined, undefined]);
});

async function publicKey(): Promise<ArrayBuffer> {
  const pair = (await crypto.subtle.generateKey({ name: "X25519" }, true, ["deriveBits"])) as CryptoKeyPair;
  return crypto.subtle.exportKey("raw", pair.publicKey);
}

test("a document whose labels are not those of its task is refused", async () => {
  const document = JSON.parse(VECTORS.tasks.two_week);
  const { labels, ...without } = document;
  const others = [
    without,
    { ...document, labels: {} },
    { ...document, labels: { ...labels, country: ["de", "fr"] } },
    { ...document, labels: { ...labels, more: ["x"] } },
    { ...document, labels: [] },
  ];
  for (const each of others) {
    await assert.rejects(Task.parse(new TextEncoder().encode(JSON.stringify(each))), /contradicts/);
  }
  const told = JSON.parse(document.task);
  for (const wrong of [{ a: ["x\r\ny"] }, { "a b": ["x"] }, { a: ["ä"] }, { a: [7] }, { a: 7 }]) {
    const text = JSON.stringify({ ...told, labels: wrong });
    const digest = toHex(
      new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text))),
    );
    const made = { ...document, labels: wrong, task: text, digest: digest.slice(0, 32) };
    await assert.rejects(Task.parse(new TextEncoder().encode(JSON.stringify(made))), Refused);
  }
});
