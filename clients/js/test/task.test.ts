/** Task documents: what is refused, in which words, and what a client does with good ones. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { Client, Refused, Task } from "../src/index.js";
import { hex, TapeCoins, taskOf, vectors } from "./tape.js";

const [{ document: GOOD }] = vectors("reports.json").tasks as { document: string }[];
const encoded = new TextEncoder().encode(GOOD);
const digestOf = async (text: string): Promise<string> =>
  hex(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text))));

// biome-ignore lint/suspicious/noExplicitAny: a document that is changed in any way
type Change = (document: any) => void;

/** The good document, changed, with the digest that its task then has. */
async function changed(change: Change, consistent = false): Promise<string> {
  const document = JSON.parse(GOOD);
  const told = JSON.parse(document.task);
  change(document);
  if (consistent) {
    told.mechanism.name = document.mechanism.name;
    document.task = JSON.stringify(told);
    document.digest = (await digestOf(document.task)).slice(0, 32);
  }
  return JSON.stringify(document);
}

async function refusal(document: string): Promise<string> {
  try {
    await taskOf(document);
  } catch (problem) {
    assert.ok(problem instanceof Refused, String(problem));
    assert.match(problem.message, /^[A-Z][^\n]*\.$/);
    return problem.message;
  }
  return "taken";
}

test("a good document says what the task says", async () => {
  const task = await taskOf(GOOD);
  const { digest, report, guarantee } = JSON.parse(GOOD);
  assert.equal(task.digest, digest);
  assert.equal(task.epsilon, 1);
  assert.equal(task.guarantee, guarantee.words);
  assert.equal(report[0][0], "seed");
  assert.equal(new Client(task).report(["1", "2"]).length, task.reportBytes);
});

test("documents that are none are refused in a sentence", async () => {
  for (const text of [
    "",
    "<!doctype html>",
    "null",
    "3",
    "[]",
    "{}",
    '"x"',
    '{"format":"hubbub device task 3"}',
  ]) {
    assert.match(await refusal(text), /no task document/);
  }
  assert.match(await refusal('{"format":"hubbub device task 1"}'), /parts of it are missing/);
  await assert.rejects(Task.parse(Uint8Array.of(0xff, 0xfe)), /not JSON/);
});

test("a document that is not of its task is refused", async () => {
  const flips: Change[] = [
    (d) => {
      d.task = d.task.replace("collision", "collisiom");
    },
    (d) => {
      d.digest = `${d.digest.slice(0, -1)}x`;
    },
  ];
  for (const flip of flips) assert.match(await refusal(await changed(flip)), /its digest is of another task/);
  const contradictions: Change[] = [
    (d) => {
      d.name += "!";
    },
    (d) => {
      d.guarantee.epsilon = 0.5;
    },
    (d) => {
      d.keys.salt = "0".repeat(32);
    },
    (d) => {
      d.mechanism.name = "coco";
    },
    (d) => {
      d.keys.kind = "wide";
    },
    (d) => {
      d.max_entries = null;
    },
    (d) => {
      d.max_entries = d.mechanism.shape.limit = 2 * d.max_entries;
    },
    (d) => {
      d.mechanism.shape.limit = 1;
    },
  ];
  for (const change of contradictions)
    assert.match(await refusal(await changed(change)), /contradicts the task/);
});

test("weights beyond epsilon are refused, whoever wrote them down", async () => {
  const louder = await changed((d) => {
    d.mechanism.shape.favoured = Math.round(d.mechanism.shape.favoured * 1.001);
  });
  assert.match(await refusal(louder), /more than its epsilon allows/);
  const quieter = await changed((d) => {
    d.mechanism.shape.favoured = Math.round(d.mechanism.shape.favoured * 0.999);
  });
  assert.equal(await refusal(quieter), "taken");
});

test("a document with the right digest cannot make its randomizer say more than the task promises", async () => {
  // Each of these would name a bucket, key or sum for certain, add too little noise, or report too often.
  const louder: { [mechanism: string]: Change[] } = {
    collision: [
      (d) => Object.assign(d.mechanism, { buckets: 4096 }),
      (d) =>
        Object.assign(d.mechanism, { family: "walsh", buckets: 9 }) &&
        Object.assign(d.mechanism.shape, { buckets: 9 }),
      (d) => Object.assign(d.mechanism, { buckets: 1 }) && Object.assign(d.mechanism.shape, { buckets: 1 }),
      (d) => Object.assign(d.mechanism, { sided: !d.mechanism.sided }),
    ],
    coco: [(d) => Object.assign(d.mechanism, { buckets: 4096 })],
    local_hashing: [(d) => Object.assign(d.mechanism, { buckets: 4096 })],
    sampled: [
      (d) => Object.assign(d.mechanism.shape, { outcomes: 1 }),
      (d) => Object.assign(d.mechanism.shape, { kind: 3 }),
    ],
    sketch_response: [
      (d) => Object.assign(d.mechanism, { buckets: 4096 }),
      (d) => Object.assign(d.mechanism, { seeds: 64 }),
      (d) => Object.assign(d.mechanism.shape, { favoured_count: 4096 }),
    ],
    pckv_grr: [(d) => Object.assign(d.mechanism.shape, { size: 2 })],
    privkv: [
      (d) => {
        d.mechanism.in_two_steps = true; // each of the two with all of epsilon
        d.mechanism.shape.favoured = Math.floor(Math.exp(d.guarantee.epsilon) * 2 ** 32);
      },
      (d) => Object.assign(d.mechanism.shape, { favoured: 3 * d.mechanism.shape.favoured }),
    ],
    hadamard: [
      (d) => Object.assign(d.mechanism.shape, { size: 2, blocks: 1 }),
      (d) => Object.assign(d.mechanism.shape, { size: 255 }),
    ],
    sparse_sum: [
      (d) => Object.assign(d.mechanism.shape, { numerator: d.mechanism.shape.numerator * 0.5 }),
      (d) => Object.assign(d.mechanism.shape, { denominator: 2 * d.mechanism.shape.denominator }),
      (d) => Object.assign(d.mechanism.shape, { denominator: 0 }),
      (d) => Object.assign(d.mechanism.shape, { numerator: "99999999999999999999" }),
      (d) => Object.assign(d, { max_entries: d.max_entries ? null : 5 }),
    ],
  };
  const everywhere: Change[] = [
    (d) => Object.assign(d, { period: "day" }),
    (d) => Object.assign(d, { reports_per_period: 1000 }),
    (d) => Object.assign(d.guarantee, { delta: 0.5 }),
    (d) => Object.assign(d.guarantee, { unit: "entry of a record" }),
    (d) => Object.assign(d.values, { half: 0 }),
    (d) => Object.assign(d.values, { half: d.values.half / 4 }),
    (d) => Object.assign(d.mechanism, { buckets: 1.5 }),
  ];
  const refusals = /contradicts the task|more than its epsilon allows/;
  let tried = 0;
  for (const { document } of vectors("reports.json").tasks as { document: string }[]) {
    assert.equal(await refusal(document), "taken");
    for (const change of [...louder[JSON.parse(document).mechanism.name], ...everywhere]) {
      const copy = JSON.parse(document);
      change(copy);
      assert.match(await refusal(JSON.stringify(copy)), refusals, `${copy.name}: ${change}`);
      tried++;
    }
  }
  assert.ok(tried > 400, String(tried));
});

test("as many buckets as can be counted exactly", async () => {
  const [{ document }] = (vectors("reports.json").tasks as { document: string }[]).filter((row) =>
    row.document.includes('"family":"prf"'),
  );
  const asking = (buckets: number): string => {
    const copy = JSON.parse(document);
    copy.mechanism.buckets = copy.mechanism.shape.buckets = buckets;
    return JSON.stringify(copy);
  };
  assert.equal(await refusal(asking(2 ** 21)), "taken");
  assert.match(await refusal(asking(2 ** 21 + 1)), /does not take 2097153 buckets/);
});

test("a record's noise is not exchanged for that of one entry", async () => {
  const tasks = (vectors("reports.json").tasks as { document: string }[]).map((row) =>
    JSON.parse(row.document),
  );
  const sums = tasks.filter((d) => d.mechanism.name === "sparse_sum");
  const whole = sums.find((d) => d.guarantee.unit === "record" && "reach" in d.mechanism.shape);
  const entry = sums.find((d) => d.guarantee.unit === "entry");
  const mixed = {
    ...whole,
    max_entries: null,
    mechanism: { ...entry.mechanism, buckets: 1 },
    report: entry.report,
  };
  assert.match(await refusal(JSON.stringify(mixed)), /contradicts the task/);
  assert.match(
    await refusal(JSON.stringify({ ...mixed, max_entries: whole.max_entries })),
    /more than its epsilon/,
  );
});

test("no question to the coins has more answers than a word has", () => {
  const coins = new TapeCoins(() => [0, 0]);
  assert.equal(coins.below(2 ** 32), 0);
  assert.equal(coins.below(1n << 64n), 0n);
  assert.throws(() => coins.below(2 ** 32 + 1), RangeError);
  assert.throws(() => coins.below((1n << 64n) + 1n), RangeError);
});

test("shapes that cannot be are refused", async () => {
  const change = (name: string, value: unknown): Promise<string> =>
    changed((d) => {
      d.mechanism.shape[name] = value;
    });
  for (const value of [undefined, null, "x", 1.5, {}, "1e3", Number.MAX_VALUE]) {
    assert.match(await refusal(await change("buckets", value)), /no whole number buckets/);
  }
  for (const value of [0, -1, 2 ** 40])
    assert.match(await refusal(await change("buckets", value)), /out of range/);
  assert.match(await refusal(await change("sided", 1)), /whether sided/);
  const rubbish = await changed((d) => {
    d.report = [["seed", "x"]];
  });
  assert.match(await refusal(rubbish), /not what they should be/);
  assert.match(await refusal(await change("other", 0)), /weights are wrong/);
});

test("what this client does not know is refused by name", async () => {
  for (const name of ["gaussian", "__proto__", "toString"]) {
    const unknown = await changed((d) => {
      d.mechanism.name = name;
    }, true);
    assert.match(await refusal(unknown), new RegExp(`Mechanism ${name} is not known`));
  }
  const several = await changed((d) => {
    d.messages = 2.5;
  });
  assert.match(await refusal(several), /several messages/);
  const turns = JSON.parse(GOOD);
  turns.task = JSON.stringify({ ...JSON.parse(turns.task), rotation: 4 });
  turns.digest = (await digestOf(turns.task)).slice(0, 32);
  assert.match(await refusal(JSON.stringify(turns)), /contradicts/); // no periods to take turns in
});

test("a pinned document is that one and no other", async () => {
  const pin = await digestOf(GOOD);
  assert.equal((await Task.parse(encoded, pin.toUpperCase())).digest, JSON.parse(GOOD).digest);
  await assert.rejects(Task.parse(new TextEncoder().encode(`${GOOD} `), pin), /not the pinned task document/);
});

test("tasks are fetched, and what is no task is refused", async () => {
  const answers: { [path: string]: [number, string] } = {
    "/good": [200, GOOD],
    "/html": [200, "<html>log in</html>"],
    "/busy": [503, GOOD],
  };
  const server = createServer((request, response) => {
    const [status, body] = answers[request.url ?? ""] ?? [404, ""];
    response.writeHead(status).end(body);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  try {
    const pin = await digestOf(GOOD);
    assert.equal((await Task.fetch(`${address}/good`, { pin })).digest, JSON.parse(GOOD).digest);
    await assert.rejects(Task.fetch(`${address}/html`), /not JSON/);
    await assert.rejects(Task.fetch(`${address}/busy`), /cannot be fetched .*503/);
    await assert.rejects(Task.fetch(`${address}/none`), /cannot be fetched .*404/);
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
  await assert.rejects(Task.fetch(`${address}/good`), Refused);
});
