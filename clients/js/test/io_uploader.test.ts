/** The uploader: what it took goes out once, whatever the network or the collector does. */
import assert from "node:assert/strict";
import type { ServerResponse } from "node:http";
import { test } from "node:test";
import { toHex } from "../src/bytes.js";
import { FileStore, Refused, type Task, Uploader } from "../src/node.js";
import { periodOf } from "../src/periods.js";
import type { Store } from "../src/store.js";
import { envelope, type UploaderOptions } from "../src/uploader.js";
import { Fake, freshPath, madeUp, own, task } from "./shared/io.js";

const MONDAY = new Date(2026, 10, 16);

function open(
  address: string,
  made: Task,
  path = freshPath(),
  more: Partial<UploaderOptions> = {},
): Uploader {
  return new Uploader(address, made, { store: new FileStore(path), token: "hub_upload_x", ...more });
}

test("a report is spent and sent once, in whichever page", async () => {
  const [fake, week, path] = [await new Fake().start(), await task("week"), freshPath()];
  for (let page = 0; page < 3; page++) {
    const uploader = open(`${fake.address}/`, week, path);
    assert.equal(await uploader.report(["search"], MONDAY), page === 0);
    assert.ok(await uploader.flush());
    assert.equal(await uploader.waiting(), 0);
    uploader.close();
  }
  assert.equal(fake.sent.length, 1);
  const [{ batch, body, token, path: route }] = fake.sent;
  assert.match(batch, /^\d{8}-[0-9a-f]{32}$/);
  assert.equal(batch.slice(0, 8), new Date().toISOString().slice(0, 10).replaceAll("-", ""));
  assert.equal(token, "Bearer hub_upload_x");
  assert.equal(route, `/v1/tasks/${week.digest}/reports`);
  const report = await open(fake.address, week, path).ledger.report(week, ["search"], MONDAY);
  assert.deepEqual(body, envelope(week, report));
});

test("whatever is answered, the same batch is sent until the collector itself has taken it", async () => {
  const [fake, week] = [await new Fake().start(), await task("week")];
  const page =
    (status: number, text: string, headers = {}) =>
    (_: string, response: ServerResponse) => {
      response.writeHead(status, { "Content-Type": "text/html", ...headers });
      response.end(text);
    };
  fake.answers = [
    own(503, { "Retry-After": "0" }),
    own(429),
    own(500),
    own(401),
    (_, response) => void response.destroy(),
    page(200, "<h1>Welcome to our hotel</h1>"),
    page(302, "", { Location: `${fake.address}/elsewhere` }),
    page(413, "too large, says a proxy"),
    (_, response) => own(200)("20261118-another", response),
    (batch, response) => {
      response.writeHead(200, { "Content-Type": "application/json", "Content-Length": "1000" });
      response.write(`{"batch": "${batch}", "accepted": 1}`, () => response.destroy());
    },
  ];
  const wrong = fake.answers.length;
  const path = freshPath();
  for (let attempt = 0; attempt <= wrong; attempt++) {
    const uploader = open(fake.address, week, path); // pages come and go
    if (!attempt) await uploader.add(madeUp(5 * week.reportBytes));
    const arrived = await uploader.flush(0);
    assert.equal(await uploader.waiting(), arrived ? 0 : 5);
    uploader.close();
    if (arrived) break;
  }
  assert.equal(fake.sent.length, wrong + 1);
  const [first] = fake.sent;
  assert.deepEqual(first.body, envelope(week, madeUp(5 * week.reportBytes)));
  for (const each of fake.sent) {
    assert.equal(each.path, first.path); // no redirect was followed
    assert.equal(each.batch, first.batch);
    assert.deepEqual(each.body, first.body);
  }
});

test("the collector's wish to wait is respected, and nobody has to ask again", async () => {
  const [fake, week] = [await new Fake().start(), await task("week")];
  const times: number[] = [];
  fake.answers = [
    (batch, response) => {
      times.push(performance.now());
      own(429, { "Retry-After": "1" })(batch, response);
    },
    (batch, response) => {
      times.push(performance.now());
      own(200)(batch, response);
    },
  ];
  const uploader = open(fake.address, week);
  await uploader.add(madeUp(week.reportBytes));
  while (await uploader.waiting()) await new Promise((resolve) => setTimeout(resolve, 20));
  uploader.close();
  assert.ok(times[1] - times[0] >= 990);
  assert.equal(fake.sent.length, 2);
});

test("a batch whose period has not begun is kept, and holds up no other", async () => {
  const [fake, week, path] = [await new Fake().start(), await task("week"), freshPath()];
  const early = new Set<string>();
  fake.answers = Array(9).fill((batch: string, response: ServerResponse) => {
    if (!fake.sent.slice(0, -1).length || early.has(batch)) {
      early.add(batch);
      const problem = { batch, status: 429, begins: "2026-11-23" };
      response.writeHead(429, { "Content-Type": "application/problem+json", "Retry-After": "3600" });
      response.end(JSON.stringify(problem));
    } else own(200)(batch, response);
  });
  for (let page = 0; page < 3; page++) {
    const uploader = open(fake.address, week, path); // pages come and go, each with the early batch first
    await uploader.add(madeUp(week.reportBytes));
    assert.equal(await uploader.flush(5), false);
    assert.equal(await uploader.waiting(), 1);
    assert.deepEqual(await uploader.refused(), []);
    uploader.close();
  }
  assert.equal(early.size, 1);
  assert.equal(new Set(fake.sent.map(({ batch }) => batch)).size, 3);
});

test("what the collector refuses for good is set aside", async () => {
  const [fake, week] = [await new Fake().start(), await task("week")];
  for (const status of [409, 422, 413]) {
    fake.sent = [];
    fake.answers = [own(status)];
    const uploader = open(fake.address, week);
    await uploader.add(madeUp(week.reportBytes));
    assert.equal(await uploader.flush(), false);
    assert.equal(await uploader.waiting(), 0);
    assert.deepEqual(await uploader.refused(), [
      {
        period: periodOf("week", new Date()),
        id: fake.sent[0].batch,
        reports: toHex(madeUp(week.reportBytes)),
      },
    ]);
    assert.ok(await uploader.flush()); // said once
    uploader.close();
    assert.equal(fake.sent.length, 1);
  }
});

test("too large: halves, each under an id of its own, and nothing is lost", async () => {
  const [fake, week] = [await new Fake().start(), await task("week")];
  const reports = madeUp(7 * week.reportBytes);
  const header = envelope(week, new Uint8Array()).length;
  fake.answers = Array(20).fill((batch: string, response: ServerResponse) => {
    const { body } = fake.sent.at(-1)!;
    own(body.length > header + 2 * week.reportBytes ? 413 : 200)(batch, response);
  });
  const uploader = open(fake.address, week);
  await uploader.add(reports);
  assert.ok(await uploader.flush());
  const taken = fake.sent.filter(({ body }) => body.length <= header + 2 * week.reportBytes);
  const arrived = taken.map(({ body }) => toHex(body.subarray(header - 16, -16)));
  assert.equal(arrived.sort().join(""), inParts(toHex(reports), arrived).sort().join(""));
  assert.equal(new Set(fake.sent.map(({ batch }) => batch)).size, fake.sent.length);
  uploader.close();
});

/** A text cut like the given parts, wherever they are in it; fails if they do not cover it once. */
function inParts(text: string, parts: string[]): string[] {
  const places = parts.map((part) => text.indexOf(part)).sort((one, other) => one - other);
  return places.map((place, i) => text.slice(place, places[i + 1]));
}

test("batches hold as many as allowed", async () => {
  const [fake, week] = [await new Fake().start(), await task("week")];
  const uploader = open(fake.address, week, freshPath(), { batch: 4 });
  await uploader.add(madeUp(10 * week.reportBytes));
  assert.ok(await uploader.flush());
  const sizes = fake.sent.map(({ body }) => (body.length - 64) / week.reportBytes);
  assert.deepEqual(sizes.sort(), [2, 4, 4]);
  uploader.close();
});

test("what cannot be sent is refused in a sentence", async () => {
  const week = await task("week");
  const path = freshPath();
  for (const address of ["", "collector", "ftp://collector.example", "https://"]) {
    assert.throws(() => open(address, week, path), Refused);
  }
  assert.throws(() => open("https://collector.example", week, path, { batch: 0 }), Refused);
  assert.throws(() => new Uploader("https://collector.example", week), Refused); // no store in Node
  const uploader = open("http://127.0.0.1:9", week, path);
  for (const size of [0, 1, week.reportBytes + 1]) {
    await assert.rejects(uploader.add(new Uint8Array(size)), Refused);
  }
  assert.equal(await uploader.flush(0), true);
  await uploader.add(madeUp(week.reportBytes));
  assert.equal(await uploader.flush(0), false);
  assert.match(uploader.trouble, /^the collector cannot be reached/);
  uploader.close();
  const sealing = open("http://127.0.0.1:9", week, path, { sealedFor: new Uint8Array(32) });
  await assert.rejects(sealing.add(madeUp(week.reportBytes)), Refused);
  sealing.close();
});

test("a page that goes says nothing that is not in the store yet", async () => {
  const [fake, week] = [await new Fake().start(), await task("week")];
  const page = globalThis as { addEventListener?: unknown };
  const handlers: { [name: string]: () => void } = {};
  page.addEventListener = (name: string, handler: () => void) => {
    handlers[name] = handler;
  };
  let written: (() => void) | undefined;
  const slow: Store = {
    where: "a slow disk",
    read: async () => undefined,
    change: (change) => {
      const { result } = change(undefined);
      return new Promise((resolve) => {
        written = () => resolve(result);
      });
    },
  };
  const uploader = new Uploader(fake.address, week, { store: slow });
  delete page.addEventListener;
  assert.ok(await uploader.flush()); // it has looked, and nothing waits
  const made = uploader.report(["search"], MONDAY);
  while (!written) await new Promise((resolve) => setTimeout(resolve, 5));
  handlers.pagehide();
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.equal(fake.sent.length, 0);
  written();
  assert.ok(await made);
  handlers.pagehide();
  while (!fake.sent.length) await new Promise((resolve) => setTimeout(resolve, 10));
  uploader.close();
});
