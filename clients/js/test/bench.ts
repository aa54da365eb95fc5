/**
 * How much of a processor's time a report takes: reads task documents, one per line, and reports 32 of their keys again and again.
 *
 *     hubbub task export task.toml -o task.json && npm run bench < task.json
 */
import { createInterface } from "node:readline";
import { Client } from "../src/client.js";
import { taskOf } from "./tape.js";

const ENTRIES = 32;
const ROUNDS = 3000;

for await (const line of createInterface({ input: process.stdin })) {
  const task = await taskOf(line);
  const vocabulary = JSON.parse(JSON.parse(line).task).keys.vocabulary ?? [];
  const keys = Array.from({ length: ENTRIES }, (_, at) => vocabulary[at] ?? String(at));
  const record = Object.fromEntries(keys.map((key) => [key, task.scale.high]));
  const client = new Client(task);
  const spent = (): number => (({ user, system }) => (user + system) / 1000)(process.cpuUsage());
  const start = spent();
  client.report(record);
  const first = spent() - start;
  for (let round = 0; round < ROUNDS; round++) client.report(record);
  const each = (spent() - start - first) / ROUNDS;
  console.log(`${task.name}: first ${first.toFixed(2)} ms, then ${each.toFixed(3)} ms`);
}
