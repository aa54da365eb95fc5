/** Rules for several periods: turns and memos, as in Python (tests/vectors/periods.json), and what a ledger tells. */
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fromHex, toHex } from "../src/bytes.js";
import { nameOf } from "../src/memo.js";
import {
  BudgetSpent,
  type DeviceRecord,
  FileStore,
  Ledger,
  Refused,
  statement,
  Task,
  Uploader,
} from "../src/node.js";
import { takesPart } from "../src/periods.js";
import { emptySummary, encodeRecord } from "../src/record.js";
import { seal } from "../src/sealing.js";
import { envelope } from "../src/uploader.js";
import { Fake, freshPath, task } from "./shared/io.js";

interface Row {
  document: string;
  turns?: [string, number][];
  records?: DeviceRecord[];
  names?: string[];
  asked?: number[];
  said?: number[];
}

const VECTORS: { salt: string; tasks: Row[] } = JSON.parse(
  readFileSync("../../tests/vectors/periods.json", "utf8"),
);
const MONDAY = new Date(2026, 0, 5);
const KEY = Uint8Array.from({ length: 32 }, (_, i) => (i ? 0 : 9));

const week = (number: number): Date => new Date(2026, 0, 5 + 7 * number);
const parse = (text: string): Promise<Task> => Task.parse(new TextEncoder().encode(text));
const rowsWith = (part: keyof Row): Row[] => VECTORS.tasks.filter((row) => row[part]);

/** The task of a row, with other rules. */
async function changed(row: Row, rules: object, format?: string): Promise<Task> {
  const document = JSON.parse(row.document);
  document.task = JSON.stringify({ ...JSON.parse(document.task), ...rules });
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(document.task));
  document.digest = toHex(new Uint8Array(hash)).slice(0, 32);
  if (format) document.format = format;
  return parse(JSON.stringify(document));
}

/** Which answers are alike, numbered by first appearance; -1 for silence. */
async function pattern(ledger: Ledger, made: Task, records: DeviceRecord[]): Promise<number[]> {
  const numbers = new Map<string, number>();
  const said: number[] = [];
  for (const [number, record] of records.entries()) {
    try {
      const report = toHex(await ledger.report(made, record, week(number)));
      if (!numbers.has(report)) numbers.set(report, numbers.size);
      said.push(numbers.get(report) as number);
    } catch (problem) {
      assert.ok(problem instanceof BudgetSpent);
      said.push(-1);
    }
  }
  return said;
}

test("whose turn it is", async () => {
  const rows = rowsWith("turns");
  assert.equal(rows.length, 6);
  for (const row of rows) {
    const made = await parse(row.document);
    for (const [day, turn] of row.turns ?? []) {
      const [year, month, date] = day.split("-").map(Number);
      for (const hour of [0, 12, 23]) {
        const moment = new Date(year, month - 1, date, hour, 59);
        assert.ok(takesPart(made, turn, moment), `${day} ${made.period}`);
        assert.ok(!takesPart(made, (turn + 1) % made.rotation, moment));
      }
    }
  }
});

test("a clock whose year no period has is refused, and nothing is kept", async () => {
  const [made, store] = [await task("week"), new FileStore(freshPath())];
  for (const day of [new Date(Number.NaN), new Date(12345, 0), new Date(-1, 0)]) {
    await assert.rejects(new Ledger(store).report(made, ["a"], day), { name: "Refused", message: /set it/ });
    await assert.rejects(new Ledger(store).sealed(made, ["a"], KEY, day), Refused);
  }
  assert.equal(await store.read(), undefined);
});

test("a turn is drawn once and kept, and is all that silence depends on", async () => {
  const made = await parse(rowsWith("turns")[2].document);
  assert.deepEqual([made.period, made.rotation], ["week", 4]);
  const turns = new Set<number>();
  for (let device = 0; device < 56; device++) {
    const path = freshPath();
    const first = await pattern(new Ledger(new FileStore(path)), made, Array(8).fill(["a"]));
    const turn = first.findIndex((each) => each >= 0);
    turns.add(turn);
    first.forEach((each, number) => {
      assert.equal(each >= 0, number % 4 === turn);
    });
    const kept = JSON.parse(readFileSync(path, "utf8")).kept[made.digest].turn;
    assert.ok(takesPart(made, kept, week(turn)));
    if (device > 2) continue;
    const other = await pattern(new Ledger(new FileStore(path)), made, Array(8).fill([]));
    assert.deepEqual(
      other.map((each) => each >= 0),
      first.map((each) => each >= 0),
    );
    const silent = week(turn + 1);
    await assert.rejects(new Ledger(new FileStore(path)).fresh(made, ["a"], silent), /is not its turn/);
    await assert.rejects(new Ledger(new FileStore(path)).sealed(made, ["a"], KEY, silent), /is not its turn/);
  }
  assert.equal(turns.size, 4); // one of four is missed by 56 devices with probability 4e-7
});

test("which records are the same", async () => {
  const salt = fromHex(VECTORS.salt) as Uint8Array;
  for (const row of rowsWith("names")) {
    const made = await parse(row.document);
    const names = (row.records ?? []).map((record) =>
      nameOf(salt, encodeRecord(made.keys, made.scale, record, emptySummary())),
    );
    assert.deepEqual(names, row.names);
  }
});

test("which report is said when, as in Python", async () => {
  for (const row of rowsWith("said")) {
    const [made, ledger] = [await parse(row.document), new Ledger(new FileStore(freshPath()))];
    const asked = (row.asked ?? []).map((number) => (row.records ?? [])[number]);
    const said = await pattern(ledger, made, asked);
    assert.deepEqual(said, row.said);
    assert.equal(await ledger.spent(made), made.epsilon * (1 + Math.max(...said)));
    assert.equal(1 + Math.max(...said), made.memoizeCap);
  }
});

test("many at once: one answer a week, and no more reports than the cap", async () => {
  const made = await parse(rowsWith("said")[1].document);
  const path = freshPath();
  for (let number = 0; number < 5; number++) {
    const all = ["a", "b", "c", "d"].map((key) =>
      new Ledger(new FileStore(path)).report(made, { [key]: 1 }, week(number)),
    );
    assert.equal(new Set((await Promise.all(all)).map(toHex)).size, 1);
  }
  assert.ok((await new Ledger(new FileStore(path)).spent(made)) <= made.memoizeCap * made.epsilon);
});

test("what is to be sent again is queued again", async () => {
  const made = await parse(rowsWith("said")[2].document);
  const fake = await new Fake().start();
  const store = new FileStore(freshPath());
  const uploader = new Uploader(fake.address, made, { store, token: "token" });
  const taken = [];
  for (const number of [0, 0, 1, 2]) taken.push(await uploader.report(["a"], week(number)));
  assert.deepEqual(taken, [true, false, true, true]);
  assert.ok(await uploader.flush(30));
  await uploader.close();
  assert.equal(await uploader.ledger.spent(made), made.epsilon);
  const sent = fake.sent.reduce(
    (bytes, each) => bytes + each.body.length - envelope(made, new Uint8Array()).length,
    0,
  );
  assert.equal(sent, 3 * made.reportBytes);
});

test("no shuffler", async () => {
  const made = await parse(rowsWith("said")[0].document);
  const store = new FileStore(freshPath());
  await assert.rejects(new Ledger(store).sealed(made, ["a"], KEY, MONDAY), /link a person/);
  await assert.rejects(seal(new Uint8Array(made.reportBytes), KEY, made, "2026-W02", []), /link a person/);
  assert.throws(() => new Uploader("http://localhost", made, { store, sealedFor: KEY }), /link a person/);
  assert.equal(await store.read(), undefined);
});

test("rules that contradict each other, or the document's format, are refused", async () => {
  const [turns, memo] = [rowsWith("turns")[2], rowsWith("said")[1]];
  const bad: [Row, object, string?][] = [
    [turns, { rotation: 0 }],
    [turns, { rotation: 1.5 }],
    [turns, { rotation: 1001 }],
    [turns, { rotation: "4" }],
    [turns, {}, "hubbub device task 1"],
    [memo, {}, "hubbub device task 1"],
    [memo, { memoize: "key" }],
    [memo, { memoize: "off" }],
    [memo, { memoize_cap: 0 }],
    [memo, { memoize_cap: 2.5 }],
    [memo, { memoize_cap: 1001 }],
    [memo, { memoize_cap: undefined }],
    [memo, { memoize: undefined }],
  ];
  for (const [row, rules, format] of bad) {
    await assert.rejects(changed(row, rules, format), { name: "Refused", message: /contradicts/ });
  }
  assert.equal((await changed(memo, { memoize_cap: 1000, rotation: 2 })).memoizeCap, 1000);
});

test("a memo or a turn that is none is refused and stays as it is", async () => {
  const [made, turns] = [
    await parse(rowsWith("said")[1].document),
    await parse(rowsWith("turns")[2].document),
  ];
  const path = freshPath();
  await pattern(new Ledger(new FileStore(path)), made, [["a"], ["a"], ["b"]]);
  const whole = JSON.parse(readFileSync(path, "utf8"));
  const kept = whole.kept[made.digest];
  const { memo } = kept;
  const damaged: [Task, unknown][] = [
    ...[
      undefined,
      7,
      { ...kept, memo: undefined },
      { ...kept, again: [] },
      { ...kept, again: ["2026-W02", "2026-W03"] },
      { ...kept, days: 7 },
      { ...kept, memo: { ...memo, salt: "00" } },
      { ...kept, memo: { ...memo, reports: {} } },
      {
        ...kept,
        memo: { ...memo, reports: Object.fromEntries(Object.keys(memo.reports).map((name) => [name, "00"])) },
      },
      { ...kept, memo: { ...memo, reports: { "00": Object.values(memo.reports)[0] } } },
    ].map((each): [Task, unknown] => [made, each]),
    ...[4, -1, 1.5, "1", null].map((turn): [Task, unknown] => [turns, { name: "", days: {}, turn }]),
  ];
  for (const [which, each] of damaged) {
    const text = JSON.stringify({ ...whole, kept: { ...whole.kept, [which.digest]: each } });
    writeFileSync(path, text);
    await assert.rejects(new Ledger(new FileStore(path)).report(which, ["a"], week(9)), (problem: Error) => {
      assert.ok(problem instanceof Refused, text);
      assert.match(problem.message, /is not a ledger/);
      return true;
    });
    assert.equal(readFileSync(path, "utf8"), text);
  }
});

test("the owner is told what was sent, when, and what it cost", async () => {
  const [plain, made] = [await task("week"), await parse(rowsWith("said")[2].document)];
  const path = freshPath();
  const store = new FileStore(path);
  const ledger = new Ledger(store);
  assert.equal(await statement(store), "Nothing was sent.");
  await ledger.sealed(plain, ["search"], KEY, week(0));
  await pattern(ledger, made, [["a"], ["a"], ["b"]]);
  const words = await statement(store);
  for (const part of [
    `Task ${plain.name} (${plain.digest}): each report costs epsilon = ${plain.epsilon} per record`,
    "  2026-W02, 2026-01-05: 1 report sealed for a shuffler",
    "  2026-W03, 2026-01-12: an earlier report again, to a collector",
    "  2026-W04, 2026-01-19: 1 report to a collector",
    `  in all: 2 reports, epsilon = ${2 * made.epsilon} per record`,
    "at most 4 reports, ever: epsilon = 4",
    `Together: epsilon = ${plain.epsilon + 2 * made.epsilon}, added up over 3 reports.`,
    "that a record changed, and that it is again what it was, shows by the bytes",
  ]) {
    assert.ok(words.includes(part), `${part}\n\n${words}`);
  }
  // A ledger of an earlier version, which kept no costs.
  const book = JSON.parse(readFileSync(path, "utf8"));
  writeFileSync(path, JSON.stringify({ ...book, kept: undefined }));
  assert.match(
    await statement(store),
    /last used before costs were kept[\s\S]*not bounded by any epsilon known here/,
  );
  writeFileSync(path, JSON.stringify({ ...book, ledger: { other: [7] } }));
  await assert.rejects(statement(store), /is not a ledger/);
});
