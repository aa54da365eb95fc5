/** Seeds from the collector: the same as Python's (tests/vectors/nonces.json), asked for, and never without need. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { test } from "node:test";
import { toHex } from "../src/bytes.js";
import { privatize } from "../src/client.js";
import { Client, FileStore, Ledger, Refused, Task, Uploader } from "../src/node.js";
import { nonceSeeds } from "../src/nonces.js";
import { emptySummary } from "../src/record.js";
import { bigOf } from "../src/siphash.js";
import { Fake, freshPath, madeUp, own, task as plainTask } from "./shared/io.js";
import { TapeCoins } from "./tape.js";

interface Vectors {
  seeds: [string, string[]][];
  tasks: { group: number; document: string; reports: [string, { [key: string]: number }, string][] }[];
}

const VECTORS: Vectors = JSON.parse(readFileSync("../../tests/vectors/nonces.json", "utf8"));
const NONCE = "20261118-1-00112233445566778899aabb-AAAAAAAAAAAAAAAAAAAAAA";
const parsed = (document: string): Promise<Task> => Task.parse(new TextEncoder().encode(document));
const first = (): Promise<Task> => parsed(VECTORS.tasks[0].document);

/** What a collector answers who hands out a nonce. */
const handsOut =
  (nonce: string, more: object = {}) =>
  (batch: string, response: ServerResponse): void => {
    response.writeHead(200, { "Content-Type": "application/json" });
    response.end(JSON.stringify({ batch, nonce, reports: 1, ...more }));
  };

test("seeds are the hash of nonce and number, and reports the same bytes as Python's", async () => {
  for (const [nonce, seeds] of VECTORS.seeds) {
    const source = nonceSeeds(nonce);
    const drawn = [...source.draw(64, 5), ...source.draw(64, seeds.length - 5)];
    assert.deepEqual(
      drawn.map((word) => String(bigOf(word))),
      seeds,
    );
  }
  for (const { group, document, reports } of VECTORS.tasks) {
    const task = await parsed(document);
    reports.forEach(([nonce, record, bytes], vector) => {
      const coins = TapeCoins.vector(group, vector);
      assert.equal(toHex(privatize(task, record, coins, nonceSeeds(nonce), emptySummary())), bytes);
    });
  }
});

test("a report asks for a nonce, is sent under it, and asks no more when it is made", async () => {
  const [task, fake] = [await first(), await new Fake().start()];
  fake.answers.push(handsOut(NONCE));
  const uploader = new Uploader(fake.address, task, { store: new FileStore(freshPath()), token: "t" });
  assert.equal(await uploader.report(["a"]), true);
  assert.ok(await uploader.flush());
  assert.equal(await uploader.report(["b"]), false);
  uploader.close();
  const [asked, sent, ...more] = fake.sent;
  assert.equal(asked.path, `/v1/tasks/${task.digest}/nonces`);
  assert.deepEqual([asked.body.length, asked.token], [0, "Bearer t"]);
  assert.deepEqual([sent.path, sent.batch], [`/v1/tasks/${task.digest}/reports`, NONCE]);
  assert.deepEqual(more, []);
  assert.notEqual(asked.batch, NONCE);
});

test("without a nonce nothing is made, whoever answers", async () => {
  const [task, fake] = [await first(), await new Fake().start()];
  const ledger = new Ledger(new FileStore(freshPath()));
  const uploader = new Uploader(fake.address, task, { store: ledger.store });
  const portal = (_: string, response: ServerResponse): void => {
    response.writeHead(200, { "Content-Type": "text/html" });
    response.end("<html>log in</html>");
  };
  for (const answer of [
    portal,
    own(429),
    own(200),
    handsOut("two words"),
    handsOut(NONCE, { batch: "another" }),
  ]) {
    fake.answers.push(answer);
    await assert.rejects(uploader.report(["a"]), /handed out none .*: report again later/);
  }
  fake.stop();
  await assert.rejects(uploader.report(["a"]), Refused);
  assert.equal(await ledger.spent(task), 0);
  assert.equal(await uploader.waiting(), 0);
  uploader.close();
});

test("nonces are for tasks that need one, and these are for no shuffler", async () => {
  const [task, plain] = [await first(), await plainTask("week")];
  assert.throws(() => new Client(task).report(["a"]), /needs a nonce/);
  const ledger = new Ledger(new FileStore(freshPath()));
  const spend = ledger.spend(plain, ["search"], undefined, new Date(), undefined, {}, NONCE);
  await assert.rejects(spend, /needs no nonce/);
  await assert.rejects(ledger.report(task, ["a"]), /needs a nonce/);
  await assert.rejects(ledger.sealed(task, ["a"], madeUp(32)), /for no shuffler/);
  const open = { store: ledger.store, sealedFor: madeUp(32) };
  assert.throws(() => new Uploader("http://127.0.0.1:9", task, open), /for no shuffler/);
  const uploader = new Uploader("http://127.0.0.1:9", task, { store: ledger.store });
  await assert.rejects(uploader.add(new Uint8Array(task.reportBytes)), /call report/);
  uploader.close();
});
