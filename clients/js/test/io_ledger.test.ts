/** The ledger over a file: never twice, whoever races, dies or writes rubbish. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { toHex } from "../src/bytes.js";
import { BudgetSpent, FileStore, Ledger, Refused } from "../src/node.js";
import { type Store, unusable } from "../src/store.js";
import { freshPath, task } from "./shared/io.js";

const MONDAY = new Date(2026, 10, 16);
const RECORD = ["search", "export"];
const KEY = Uint8Array.from({ length: 32 }, (_, i) => (i ? 0 : 9)); // the curve's own point; nobody opens it here

if (process.argv[2] === "report") {
  const week = await task("week");
  process.stdout.write("ready ");
  process.stdout.write(toHex(await new Ledger(new FileStore(process.argv[3])).report(week, RECORD, MONDAY)));
} else {
  tests();
}

function tests(): void {
  test("one report a period, then the same again", async () => {
    const week = await task("week");
    const ledger = new Ledger(new FileStore(freshPath()));
    const first = await ledger.report(week, RECORD, MONDAY);
    assert.equal(first.length, week.reportBytes);
    for (const day of [16, 18, 22]) {
      assert.deepEqual(await ledger.report(week, ["print"], new Date(2026, 10, day)), first);
    }
    await assert.rejects(ledger.fresh(week, RECORD, MONDAY), BudgetSpent);
    assert.equal(await ledger.spent(week), week.epsilon);
    assert.deepEqual(await ledger.last(week, false, MONDAY), first);
    assert.equal(await ledger.last(week, true, MONDAY), undefined);
    assert.equal(await ledger.last(week, false, new Date(2026, 10, 23)), undefined); // looking spends nothing
    assert.equal(await ledger.spent(week), week.epsilon);
    await ledger.fresh(week, RECORD, new Date(2026, 10, 23));
    assert.equal(await ledger.spent(week), 2 * week.epsilon);
    assert.deepEqual(await ledger.report(week, RECORD, MONDAY), first); // a clock that was set back
  });

  test("as many as the task says, and tasks apart", async () => {
    const [twice, day] = [await task("twice"), await task("day")];
    const ledger = new Ledger(new FileStore(freshPath()));
    await ledger.fresh(twice, RECORD, MONDAY);
    const second = await ledger.fresh(twice, RECORD, MONDAY);
    assert.deepEqual(await ledger.report(twice, RECORD, MONDAY), second);
    await ledger.fresh(day, RECORD, MONDAY);
    assert.equal(await ledger.spent(twice), 2 * twice.epsilon);
  });

  test("a report takes one way and is sealed once", async () => {
    const week = await task("week");
    const bare = new Ledger(new FileStore(freshPath()));
    await bare.report(week, RECORD, MONDAY);
    await assert.rejects(bare.sealed(week, RECORD, KEY, MONDAY), BudgetSpent);
    const path = freshPath();
    const sealed = new Ledger(new FileStore(path));
    const item = await sealed.sealed(week, RECORD, KEY, MONDAY);
    assert.deepEqual(await sealed.sealed(week, RECORD, KEY, MONDAY), item);
    await assert.rejects(sealed.report(week, RECORD, MONDAY), BudgetSpent);
    const book = JSON.parse(readFileSync(path, "utf8"));
    assert.deepEqual(book.ledger[week.digest]["2026-W47"], [{ sealed: toHex(item) }]);
  });

  test("bad keys are refused before anything is spent", async () => {
    const week = await task("week");
    const ledger = new Ledger(new FileStore(freshPath()));
    for (const key of [new Uint8Array(32), new Uint8Array(31), new Uint8Array(33)]) {
      await assert.rejects(ledger.sealed(week, RECORD, key, MONDAY), Refused);
    }
    assert.equal(await ledger.spent(week), 0);
  });

  test("many at once: one report", async () => {
    const [path, week] = [freshPath(), await task("week")];
    const all = Array.from({ length: 12 }, () =>
      new Ledger(new FileStore(path)).report(week, RECORD, MONDAY),
    );
    assert.equal(new Set((await Promise.all(all)).map(toHex)).size, 1);
    assert.equal(await new Ledger(new FileStore(path)).spent(week), week.epsilon);
  });

  test("processes that are killed in the middle spend nothing twice", async () => {
    const week = await task("week");
    let cut = 0;
    for (let round = 0; round < 6; round++) {
      const path = freshPath();
      const said = await Promise.all([5 * round, 7 * round, 60_000].map((wait) => killed(path, wait)));
      const last = toHex(await new Ledger(new FileStore(path)).report(week, RECORD, MONDAY));
      for (const report of said.filter((each) => each)) assert.equal(report, last);
      assert.equal(await new Ledger(new FileStore(path)).spent(week), week.epsilon);
      cut += said.filter((each) => !each).length;
    }
    assert.ok(cut > 0, "no process was killed in time");
  });

  test("what is not a ledger is refused and stays as it is", async () => {
    const week = await task("week");
    const good = (made: unknown) => ({ ledger: { [week.digest]: made }, outbox: {}, refused: {} });
    const rubbish = [
      "",
      "{",
      "[]",
      "null",
      "7",
      "{}",
      '{"ledger": []}',
      ...[
        [],
        7,
        { "2026-W47": 7 },
        { "2026-W47": [7] },
        { "2026-W47": ["0"] },
        { "2026-W47": ["zzzzzz"] },
      ].map((made) => JSON.stringify(good(made))),
      JSON.stringify(good({ "2026-W47": ["00".repeat(week.reportBytes + 1)] })),
      JSON.stringify(good({ "2026-W47": [{ sealed: "00".repeat(week.reportBytes) }] })),
      JSON.stringify({ ...good({}), outbox: { [week.digest]: [{ id: "a b", reports: "000000" }] } }),
    ];
    for (const text of rubbish) {
      const path = freshPath();
      writeFileSync(path, text);
      await assert.rejects(new Ledger(new FileStore(path)).report(week, RECORD, MONDAY), (problem: Error) => {
        assert.ok(problem instanceof Refused, text);
        assert.match(problem.message, /is not a ledger; nothing is reported/);
        return true;
      });
      assert.equal(readFileSync(path, "utf8"), text);
    }
    // What is kept for other tasks is their business.
    const path = freshPath();
    writeFileSync(path, JSON.stringify({ ledger: { other: [7] }, outbox: {}, refused: {} }));
    await new Ledger(new FileStore(path)).report(week, RECORD, MONDAY);
    assert.deepEqual(JSON.parse(readFileSync(path, "utf8")).ledger.other, [7]);
  });

  test("no folder, and a store that is full: refused, and nothing is said", async () => {
    const week = await task("week");
    const nowhere = new Ledger(new FileStore(`${freshPath()}/no/ledger.json`));
    await assert.rejects(nowhere.report(week, RECORD, MONDAY), Refused);
    const full: Store = {
      where: "the store",
      read: async () => undefined,
      change: async () => {
        throw unusable("the store", new DOMException("", "QuotaExceededError"));
      },
    };
    await assert.rejects(new Ledger(full).report(week, RECORD, MONDAY), {
      name: "Refused",
      message: "the store is full; nothing was changed: make room and try again.",
    });
  });
}

/** The report that a process tells, "" if it is killed before, so many milliseconds after it began. */
function killed(path: string, wait: number): Promise<string> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [fileURLToPath(import.meta.url), "report", path]);
    let said = "";
    let timer: NodeJS.Timeout | undefined;
    child.stdout.on("data", (part) => {
      said += part;
      timer ??= setTimeout(() => child.kill("SIGKILL"), wait);
    });
    child.on("close", () => {
      clearTimeout(timer);
      resolve(said.slice("ready ".length));
    });
  });
}
